// In what a device sends activations where its plan leaves that to it: by what its links carry while they are busy,
// against the pace that the pipeline keeps (cluster/activation-bits.ts); as they are in rounds that are compared.

import { type ActivationBits, bitsForLink, encodingOfBits } from '../../cluster/activation-bits.ts';
import type { PlanLayout } from '../../cluster/cluster.ts';
import { type ActivationEncoding, type Compression, encodings, isExactRound } from '../../cluster/compression.ts';
import type { LinkRate } from '../../transport/link.ts';
import type { RoundPorts } from '../device/round-ports.ts';

/** What a link was busy for before its rate is believed, in milliseconds. */
const leastMeasuredMs = 50;
/** Micro-batches after which the time of one is known. */
const leastPaceCount = 4;

export interface BitsInUseOptions {
  readonly compression: Compression;
  /** What the link to a peer carries; undefined where nothing measures it. */
  rate(peer: string): LinkRate | undefined;
  /** Milliseconds that this device has computed so far. */
  busyMs(): number;
}

/** The bits in which one layout's activations travel, by receiver. */
export class BitsInUse {
  readonly #options: BitsInUseOptions;
  readonly #bits = new Map<string, ActivationBits>();
  readonly #reported = new Map<string, ActivationBits>();
  readonly #sentCounts = new Map<string, number>();
  readonly #startMs: number;

  constructor(options: BitsInUseOptions) {
    this.#options = options;
    this.#startMs = options.busyMs();
  }

  /** Chooses for a piece of a micro-batch that is ready. */
  choose(
    to: string,
    { round, bytes }: { readonly round: number; readonly bytes: number },
  ): ActivationEncoding | undefined {
    const { compression, rate } = this.#options;
    const { activation, adaptive } = compression;
    if (isExactRound(round, compression)) return undefined;
    if (adaptive === undefined) return activation;
    const count = (this.#sentCounts.get(to) ?? 0) + 1;
    this.#sentCounts.set(to, count);
    const current = this.#bits.get(to) ?? bitsOf(activation);
    const link = rate(to);
    const paceMs = adaptive.paceMs ?? (this.#options.busyMs() - this.#startMs) / count;
    const isKnown = adaptive.paceMs !== undefined || count >= leastPaceCount;
    const isMeasured = link !== undefined && link.measuredMs >= leastMeasuredMs;
    const bits =
      isKnown && isMeasured && paceMs > 0 ? bitsForLink({ bytes, bandwidthMbps: link.mbps, current }, paceMs) : current;
    this.#bits.set(to, bits);
    return encodingOfBits(bits);
  }

  /** What has changed since it was last asked, by receiver. */
  changes(): Readonly<Record<string, ActivationBits>> {
    const changed = [...this.#bits].filter(([to, bits]) => this.#reported.get(to) !== bits);
    for (const [to, bits] of changed) this.#reported.set(to, bits);
    return Object.fromEntries(changed);
  }
}

function bitsOf(encoding: ActivationEncoding | undefined): ActivationBits {
  return encoding === undefined ? 32 : (encodings[encoding].bits as ActivationBits);
}

/** The bits in use of a layout; undefined where its plan decides alone. */
export function bitsInUse(
  { compression }: PlanLayout,
  device: Omit<BitsInUseOptions, 'compression'>,
): BitsInUse | undefined {
  if (compression?.activation === undefined) return undefined;
  const { adaptive, exactEvery } = compression;
  return adaptive === undefined && exactEvery === undefined ? undefined : new BitsInUse({ compression, ...device });
}

/** The port of a round; none where the plan decides alone. */
export function encodingPort(bits: BitsInUse | undefined): Pick<RoundPorts, 'encodingOf'> {
  return bits === undefined ? {} : { encodingOf: (to, activations) => bits.choose(to, activations) };
}
