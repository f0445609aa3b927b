// The events of a run: the terminal, `--json`, events.jsonl and metrics.jsonl all read this one stream.

import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import type { ModeChoice, PlannedMode } from '../../planner/modes.ts';
import type { RoundResult, RoundTimes } from './messages.ts';
import type { ProcessLoad } from './process-load.ts';

/** What a run is doing: the states of the coordinator's protocol (coordinator/machine.ts). */
export type Phase =
  | 'gathering'
  | 'preparing'
  | 'connecting'
  | 'measuring'
  | 'profiling'
  | 'planning'
  | 'deploying'
  | 'training'
  | 'snapshotting'
  | 'waiting'
  | 'ended';

/** A link with another bandwidth than the plan counted on. */
export interface LinkChange {
  readonly between: readonly [string, string];
  readonly beforeMbps: number;
  readonly mbps: number;
}

/** One line of metrics.jsonl. */
export interface RoundMetrics {
  /** From 0. */
  readonly round: number;
  readonly epoch: number;
  /** Mean over the batch, before the update. */
  readonly loss: number;
  readonly samplesPerS: number;
  readonly lr: number;
  /** Fraction of right predictions in this batch; null if the loss has none. */
  readonly accuracy: number | null;
}

/** What a run reports while it goes on; `asteroid train --json` prints most of them as lines. */
export type RunEvent =
  | {
      readonly kind: 'listening';
      readonly url: string;
      /** Where the coordinator listens on several networks: on the others. */
      readonly otherUrls?: readonly string[];
      readonly joinCode: string;
      readonly remoteCount: number;
    }
  | {
      readonly kind: 'joined';
      readonly device: string;
      readonly cores: number;
      /** The memory that plans count on. */
      readonly memoryMiB: number;
      readonly engine: string;
      readonly engineWarning?: string;
      readonly cpuModel?: string;
      /** Processor time a second that the device's process may take, if it is limited. */
      readonly cpuQuotaCores?: number;
      readonly batteryPercent?: number;
      readonly isDischarging?: boolean;
      readonly temperatureC?: number;
      readonly oomKillCount?: number;
    }
  /**
   * The system killed the device's process for lack of memory, and it joined again: plans count on less of its memory,
   * 0: on nothing.
   */
  | {
      readonly kind: 'memory-lowered';
      readonly device: string;
      readonly fromMiB: number;
      readonly toMiB: number;
      readonly killCount: number;
    }
  | { readonly kind: 'left'; readonly device: string; readonly reason: string }
  /** Neither of two devices can reach the other: what they send each other passes through the coordinator. */
  | { readonly kind: 'relayed'; readonly between: readonly [string, string] }
  /** A device that has left `departureCount` times is back; it gets no work for `seconds`. */
  | { readonly kind: 'cool-down'; readonly device: string; readonly departureCount: number; readonly seconds: number }
  /** A device has been silent for longer than usual. */
  | {
      readonly kind: 'suspected';
      readonly device: string;
      readonly silentMs: number;
      readonly suspectAfterMs: number;
      readonly deadAfterMs: number;
    }
  /** What a device sends activations in has changed. */
  | { readonly kind: 'activation-bits'; readonly from: string; readonly to: string; readonly bits: number }
  /** What each mode would cost, and the one that the run takes. */
  | { readonly kind: 'modes'; readonly modes: ModeChoice['modes']; readonly chosen: PlannedMode }
  /** The layout changes: training continues from the state after `round` rounds. */
  | {
      readonly kind: 'recovering';
      /** One clause, such as "b left in round 7 (the connection was lost)". */
      readonly cause: string;
      readonly lost: readonly string[];
      readonly plan: Plan;
      readonly round: number;
      /** Rounds that were reported and are computed again. */
      readonly repeatedRounds: number;
      /** The source of the state: devices have everything, or the last checkpoint is needed. */
      readonly source: 'devices' | 'checkpoint';
      readonly movedMiB: number;
    }
  /** The new layout is established. */
  | { readonly kind: 'recovered'; readonly cause: string; readonly round: number; readonly seconds: number }
  /**
   * A layout whose rounds overlap begins, after `round` rounds: round t of a stage computes with version
   * max(round, t − its staleness) of the weights, version n being the state after n rounds. `correction`: what makes up
   * for old weights, if anything does.
   */
  | {
      readonly kind: 'stream';
      readonly round: number;
      readonly staleness: readonly number[];
      readonly correction?: string;
    }
  /**
   * Devices are ready for the layouts that the loss of any one of them would lead to, `seconds` after their own layout
   * began.
   */
  | { readonly kind: 'reserve-ready'; readonly seconds: number }
  /**
   * The first rounds of a layout have checked the profile on its real stages: a round's time in the simulator with the
   * corrected profile, and as the plan predicted it (0: no prediction).
   */
  | { readonly kind: 'checked'; readonly roundMs: number; readonly plannedMs: number }
  /**
   * Devices whose computing takes `factors` times as long as profiled, and links with another bandwidth than measured.
   */
  | {
      readonly kind: 'drift';
      readonly factors: Readonly<Record<string, number>>;
      readonly links: readonly LinkChange[];
    }
  /**
   * FTPipeHD's central node has looked at what batches took: how many times as long as it each worker takes. `isKept`:
   * the layout stays as it is.
   */
  | {
      readonly kind: 'capacities';
      readonly capacities: Readonly<Record<string, number>>;
      readonly isKept: boolean;
    }
  /** FTPipeHD's timer: the gradients of a round have not come for so long, and all devices are asked. */
  | { readonly kind: 'overdue'; readonly round: number; readonly seconds: number }
  | { readonly kind: 'repeated'; readonly round: number }
  /** Single-device stages have been copied, in the version after `round` rounds. */
  | { readonly kind: 'replicated'; readonly round: number }
  | { readonly kind: 'phase'; readonly phase: Phase }
  | { readonly kind: 'profile-progress'; readonly device: string; readonly done: number; readonly total: number }
  | { readonly kind: 'profiled'; readonly device: string; readonly cached: boolean; readonly sampleMs: number }
  | { readonly kind: 'cluster'; readonly cluster: Cluster }
  | { readonly kind: 'profile'; readonly profile: Profile }
  | { readonly kind: 'plan'; readonly plan: Plan; readonly planningMs: number; readonly layerNames: readonly string[] }
  /** The plan as it runs: with the names of the devices that joined. */
  | { readonly kind: 'deployment'; readonly plan: Plan }
  | { readonly kind: 'deployed'; readonly device: string; readonly valueMiB: number }
  | {
      readonly kind: 'training';
      readonly firstRound: number;
      readonly endRound: number;
      readonly roundsPerEpoch: number;
    }
  | {
      readonly kind: 'round';
      readonly metrics: RoundMetrics;
      readonly endRound: number;
      readonly busyFraction: Readonly<Record<string, number>>;
      /** The work of the devices' processes. */
      readonly work: Readonly<Record<string, Pick<RoundResult, 'processMs' | 'linksMs' | 'reducingMs'>>>;
    }
  | { readonly kind: 'checkpoint'; readonly round: number; readonly path: string }
  | {
      readonly kind: 'statistics';
      readonly device: string;
      /** Of the device's first rounds in the run. */
      readonly eventLoopDelayP99Ms: number;
      readonly eventLoopDelayMaxMs: number;
      readonly peakMemoryMiB: number;
    }
  /** What the device's process takes of its machine, twice a second. */
  | ({ readonly kind: 'load'; readonly device: string } & ProcessLoad)
  | { readonly kind: 'trace'; readonly device: string; readonly round: number; readonly times: readonly RoundTimes[] }
  /** A note on how a model's file was read. */
  | { readonly kind: 'note'; readonly message: string }
  | { readonly kind: 'warning'; readonly message: string }
  | {
      readonly kind: 'evaluated';
      /** Of next tokens: e to the mean loss of a token. */
      readonly perplexity?: number;
      readonly round: number;
      readonly accuracy: number | null;
      readonly loss: number;
      readonly sampleCount: number;
    }
  /** The best test so far: the model after `round` rounds is kept. */
  | { readonly kind: 'best'; readonly metric: string; readonly value: number; readonly round: number }
  /** `testsSince` tests have found nothing better than the best: training ends after `round` rounds. */
  | {
      readonly kind: 'early-stop';
      readonly round: number;
      readonly bestRound: number;
      readonly metric: string;
      readonly value: number;
      readonly testsSince: number;
    }
  /** Somebody asked for this in the window, and it is being done. */
  | {
      readonly kind: 'asked';
      readonly what: 'stop' | 'drain' | 'learning-rate';
      readonly device?: string;
      readonly factor?: number;
    }
  /** From `round` on the learning rate is `factor` times what the schedule says. */
  | { readonly kind: 'learning-rate'; readonly round: number; readonly factor: number }
  | { readonly kind: 'stopped'; readonly round: number }
  | { readonly kind: 'failed'; readonly message: string };

/** Receives events. Must not throw. */
export type Observer = (event: RunEvent) => void;
