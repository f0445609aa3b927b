// A device's part in one layout of the run: its Program, its stage, and which versions of the stage's state it keeps.
// Version n is the state after n rounds. The version that committed last and later ones are kept; older ones only while
// they are pinned, because all devices could return to them together after a loss.

import { defined } from '../../assert.ts';
import type { Plan, PlanLayout } from '../../cluster/cluster.ts';
import { parsePlan } from '../../cluster/validate.ts';
import { InputError, ProtocolError } from '../../errors.ts';
import { forwardOnlyCount, type LayerSequence } from '../../graph/layers.ts';
import { backups } from '../../planner/replan/backups.ts';
import { program } from '../../schedule/generate.ts';
import type { DeviceProgram } from '../../schedule/program.ts';
import { partOf, type RoundPart } from '../device/rest-stage.ts';
import type { StagePort } from '../device/stage.ts';
import type { StageOptions } from '../device/stage-graphs.ts';
import type { LayerRange } from './catalog.ts';

/** A copy that this device keeps of another's stage. */
export interface KeptCopy {
  readonly owner: string;
  readonly layers: LayerRange;
}

/** A device's relations to the others of a layout. */
export interface Topology {
  /** Devices with which it exchanges data. */
  readonly peers: ReadonlySet<string>;
  /** The device that keeps the copy of its stage. */
  readonly backup: string | undefined;
  readonly kept: readonly KeptCopy[];
}

/** What of a round is not as usual. */
interface RoundShape {
  readonly sampleCount?: number | undefined;
  readonly length?: number | undefined;
}

/** A device's part in a layout. */
export class Layout implements RoundPart {
  readonly plan: PlanLayout;
  readonly program: DeviceProgram;
  readonly stage: StagePort;
  /** What the stage was compiled for: stages with equal keys compute the same. */
  readonly key: string;
  /**
   * Resolves when all of the stage's state is in place; before, a round can begin, but not update. Whoever needs it
   * sees its failure.
   */
  complete: Promise<void> = Promise.resolve();
  /** True once `complete` has resolved. */
  isComplete = false;
  /** Rounds committed. */
  committedRound: number;
  /** The versions that are to be copied when they have committed. */
  readonly dueCopies: Set<number> = new Set();
  /** The last version of which the backup has a copy, or is receiving one. */
  copiedRound: number | undefined;
  readonly #pinned = new Set<number>();

  constructor(part: Pick<Layout, 'plan' | 'program' | 'stage' | 'key'>, round: number) {
    this.plan = part.plan;
    this.program = part.program;
    this.stage = part.stage;
    this.key = part.key;
    this.committedRound = round;
  }

  /**
   * The live state is version `committedRound`, which is pinned. It is complete when `arrived` resolves, or now.
   */
  begin(arrived: Promise<void> | undefined): void {
    this.stage.keepVersion(this.committedRound);
    if (this.program.staleness !== undefined) this.stage.beginStream(this.committedRound);
    this.#pinned.add(this.committedRound);
    if (arrived === undefined) {
      this.isComplete = true;
      return;
    }
    this.complete = arrived.then(() => {
      this.isComplete = true;
    });
    this.complete.catch(() => {}); // whoever needs it sees it
  }

  /**
   * This device's part of a round of fewer samples than the plan's batch, or of shorter ones; compiled when it is first
   * asked for. Rejects with ProtocolError for a round of another kind.
   */
  async unusual({ sampleCount, length }: RoundShape): Promise<RoundPart> {
    const { batchSize } = this.plan;
    if (sampleCount !== undefined && (sampleCount >= batchSize || length !== undefined))
      throw new ProtocolError(
        `The coordinator sent a smaller round of ${sampleCount} samples; a batch has ${batchSize}.`,
      );
    if (length !== undefined && this.stage.lengths?.includes(length) !== true)
      throw new ProtocolError(`The coordinator sent samples of ${length} tokens, and no model for them.`);
    return partOf(this, this.plan, { sampleCount: sampleCount ?? batchSize, length });
  }

  /** Keeps version `round` until it is released. */
  pin(round: number): void {
    this.#pinned.add(round);
  }

  /** `round` rounds have committed: earlier versions go, unless they are pinned. */
  committed(round: number): void {
    this.committedRound = round;
    if (!this.stage.versions.includes(round)) this.stage.keepVersion(round);
    this.#dropUnpinned();
  }

  /** Unpins versions below `before`. False if none is pinned any more: a former layout is then needed no longer. */
  release(before: number): boolean {
    for (const round of [...this.#pinned]) if (round < before) this.#pinned.delete(round);
    this.#dropUnpinned();
    return this.#pinned.size > 0;
  }

  #dropUnpinned(): void {
    for (const version of this.stage.versions) {
      if (version < this.committedRound && !this.#pinned.has(version)) this.stage.dropVersion(version);
    }
  }

  /** Gives up all versions but `round`. False, with no effect, if this layout does not have that one. */
  returnTo(round: number): boolean {
    if (!this.isComplete || !this.stage.versions.includes(round)) return false;
    this.stage.returnTo(round);
    for (const version of this.stage.versions) if (version !== round) this.stage.dropVersion(version);
    this.#pinned.clear();
    this.#pinned.add(round);
    this.committedRound = round;
    this.dueCopies.clear();
    this.copiedRound = undefined;
    return true;
  }
}

/** A device's part of a plan that can be run; undefined if it has none. Throws ProtocolError. */
export function checkedProgram(plan: Plan, sequence: LayerSequence, name: string): DeviceProgram | undefined {
  let devices: readonly DeviceProgram[];
  try {
    parsePlan(plan);
    devices = program(plan).devices;
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    throw new ProtocolError(`The coordinator sent a plan that cannot be run: ${error.message}`);
  }
  const end = plan.stages.at(-1)?.layers[1];
  if (end !== sequence.layers.length)
    throw new ProtocolError(
      `The coordinator sent a plan for ${end} layers, but the model has ${sequence.layers.length}.`,
    );
  if ((plan.forwardOnlyLayers ?? 0) > forwardOnlyCount(sequence))
    throw new ProtocolError(
      `The coordinator sent a plan that leaves ${plan.forwardOnlyLayers} layers untrained, ` +
        'some of which are to be trained.',
    );
  return devices.find((entry) => entry.device === name);
}

/** A device's relations to the others of a plan. */
export function topologyOf(plan: Plan, device: DeviceProgram): Topology {
  const peers = new Set<string>();
  for (const instruction of device.instructions) {
    if (instruction.kind === 'send') peers.add(instruction.to);
    if (instruction.kind === 'receive' && instruction.from !== null) peers.add(instruction.from);
    if (instruction.kind === 'all-reduce') for (const member of instruction.group) peers.add(member);
  }
  const copies = backups(plan);
  const backup = copies.get(device.stage);
  const kept = [...copies].flatMap(([index, keeper]): KeptCopy[] => {
    const { layers, devices } = defined(plan.stages[index], 'a stage');
    return keeper === device.device ? [{ owner: defined(devices[0], 'its device'), layers }] : [];
  });
  for (const other of [backup, ...kept.map(({ owner }) => owner)]) if (other !== undefined) peers.add(other);
  peers.delete(device.device);
  return { peers, backup, kept };
}

/**
 * What a stage computes, within one run: layers, share, form and budgets, as text. Two stages of the same model and
 * settings that agree in it compute the same.
 */
export function stageIdentity({
  sequence: _sequence,
  training: _training,
  label: _label,
  ...rest
}: StageOptions): string {
  return JSON.stringify(rest);
}
