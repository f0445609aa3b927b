// Runs that only infer on this machine: run/infer.ts with Node's sockets and worker processes.

import type { CoordinatorEnd } from '../coordinator/options.ts';
import {
  type InferenceEnvironment,
  type InferenceInput,
  inferOn,
  type PreparedInference,
  prepareInference,
} from '../run/infer.ts';
import type { InferenceRounds } from '../run/inference-rounds.ts';
import { checkHost } from './addresses.ts';
import { runCluster } from './cluster-run.ts';
import type { RunGuests } from './run-guests.ts';

/** Fits settings and model together. Throws InputError where they, or the addresses, do not fit. */
export function prepareInferenceHere(input: InferenceInput): PreparedInference {
  checkHost(input.settings.cluster);
  return prepareInference(input);
}

/** Answers what is submitted to `rounds` until their end. Throws RunError when the run fails. */
export function inferHere(
  run: PreparedInference,
  rounds: InferenceRounds,
  environment: InferenceEnvironment,
  guests?: RunGuests,
): Promise<CoordinatorEnd> {
  const own: typeof runCluster = (options, cluster) => runCluster(options, cluster, guests);
  return inferOn({ runCluster: own }, run, rounds, environment);
}
