// Rounds of fewer samples than a batch, as whole ones: a server that is asked for little has no others. What a device
// takes for few samples is mostly calls and wakes, of which a profile says little, so rounds of each number of samples
// are compared with the first of their kind under the layout: a device that takes twice as long as then is taken to
// need twice the time for whole rounds, too.

import { defined } from '../../assert.ts';
import { median } from '../../statistics.ts';
import type { RoundResult } from '../protocol/messages.ts';
import type { DeviceRound } from './estimator.ts';

type Results = Readonly<Record<string, RoundResult>>;

/** The first rounds of a kind compile code and take memory; those after them are what later ones are compared with. */
const [settlingCount, comparedCount] = [3, 8];

/** Rounds of one number of samples. */
interface Kind {
  readonly first: Results[];
  /** By device, once the first rounds are over: what it took for them, and what whole rounds took then. */
  usual: ReadonlyMap<string, { readonly engineMs: number; readonly whole: DeviceRound }> | undefined;
}

export class SmallerRounds {
  readonly #kinds = new Map<number, Kind>();

  /** Another layout begins: devices have other layers. */
  begin(): void {
    this.#kinds.clear();
  }

  /**
   * What devices would report of whole rounds, at the speed at which they computed this one; undefined while rounds of
   * this kind are new. `wholeRounds`: what each device should take for a whole round, as far as is known.
   */
  asWhole(
    sampleCount: number,
    results: Results,
    wholeRounds: () => ReadonlyMap<string, DeviceRound>,
  ): Readonly<Record<string, DeviceRound & Pick<RoundResult, 'linkMbps'>>> | undefined {
    const kind = this.#kinds.get(sampleCount) ?? { first: [], usual: undefined };
    this.#kinds.set(sampleCount, kind);
    if (kind.usual === undefined) {
      if (kind.first.push(results) === settlingCount + comparedCount) kind.usual = usualOf(kind.first, wholeRounds());
      return undefined;
    }
    const found: Record<string, DeviceRound & Pick<RoundResult, 'linkMbps'>> = {};
    for (const [device, own] of Object.entries(results)) {
      const usual = kind.usual.get(device);
      if (usual === undefined) continue;
      const { linkMbps } = own;
      const whole = scaled(usual.whole, engineMs(own) / usual.engineMs);
      found[device] = linkMbps === undefined ? whole : { ...whole, linkMbps };
    }
    return found;
  }
}

/** What a device computed. */
function engineMs({ busyMs, processMs, linksMs = 0 }: DeviceRound): number {
  return processMs === undefined ? busyMs : processMs - linksMs;
}

function usualOf(first: readonly Results[], whole: ReadonlyMap<string, DeviceRound>): Kind['usual'] {
  const compared = first.slice(settlingCount);
  const devices = Object.keys(defined(compared[0], 'a round'));
  return new Map(
    devices.flatMap((device) => {
      const rounds = compared.flatMap((results) => results[device] ?? []);
      const ms = median(rounds.map(engineMs));
      const own = whole.get(device);
      return ms > 0 && own !== undefined ? [[device, { engineMs: ms, whole: own }] as const] : [];
    }),
  );
}

function scaled(round: DeviceRound, factor: number): DeviceRound {
  const { busyMs, processMs, linksMs, reducingMs } = round;
  const times = { processMs, linksMs, reducingMs };
  const known = Object.entries(times).flatMap(([key, ms]) => (ms === undefined ? [] : [[key, ms * factor] as const]));
  return { busyMs: busyMs * factor, ...Object.fromEntries(known) };
}
