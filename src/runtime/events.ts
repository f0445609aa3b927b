// What a run tells the world while it goes on: the terminal, `--json`, events.jsonl and metrics.jsonl all read this one stream.

import type { Cluster, Plan, Profile } from '../cluster/cluster.ts';
import type { Phase } from './coordinator/machine.ts';
import type { RoundTimes } from './messages.ts';

/** One line of metrics.jsonl. */
export interface RoundMetrics {
  /** From 0. */
  readonly round: number;
  readonly epoch: number;
  /** Mean over the batch, before the update. */
  readonly loss: number;
  readonly samplesPerS: number;
  readonly lr: number;
  /** Fraction of right predictions in this batch; null where the loss knows no right ones. */
  readonly accuracy: number | null;
}

export type RunEvent =
  | { readonly kind: 'listening'; readonly url: string; readonly joinCode: string; readonly remoteCount: number }
  | { readonly kind: 'joined'; readonly device: string; readonly cores: number; readonly memoryMiB: number; readonly engine: string }
  | { readonly kind: 'left'; readonly device: string; readonly reason: string }
  | { readonly kind: 'phase'; readonly phase: Phase }
  | { readonly kind: 'profile-progress'; readonly device: string; readonly done: number; readonly total: number }
  | { readonly kind: 'profiled'; readonly device: string; readonly cached: boolean; readonly sampleMs: number }
  | { readonly kind: 'cluster'; readonly cluster: Cluster }
  | { readonly kind: 'profile'; readonly profile: Profile }
  | { readonly kind: 'plan'; readonly plan: Plan; readonly planningMs: number; readonly layerNames: readonly string[] }
  /** The plan as it runs: with the names of the devices that joined. */
  | { readonly kind: 'deployment'; readonly plan: Plan }
  | { readonly kind: 'deployed'; readonly device: string; readonly valueMiB: number }
  | { readonly kind: 'training'; readonly firstRound: number; readonly endRound: number; readonly roundsPerEpoch: number }
  | {
      readonly kind: 'round';
      readonly metrics: RoundMetrics;
      readonly endRound: number;
      readonly busyFraction: Readonly<Record<string, number>>;
    }
  | { readonly kind: 'checkpoint'; readonly round: number; readonly path: string }
  | {
      readonly kind: 'statistics';
      readonly device: string;
      readonly eventLoopDelayP99Ms: number;
      readonly eventLoopDelayMaxMs: number;
      readonly peakMemoryMiB: number;
    }
  | { readonly kind: 'trace'; readonly device: string; readonly round: number; readonly times: readonly RoundTimes[] }
  /** How a model's file was read. */
  | { readonly kind: 'note'; readonly message: string }
  | { readonly kind: 'warning'; readonly message: string }
  | {
      readonly kind: 'evaluated';
      readonly round: number;
      readonly accuracy: number | null;
      readonly loss: number;
      readonly sampleCount: number;
    }
  | { readonly kind: 'stopped'; readonly round: number }
  | { readonly kind: 'failed'; readonly message: string };

/** Receives events. Must not throw. */
export type Observer = (event: RunEvent) => void;
