// Training sessions on this machine: run/ with Node's engine, sockets and worker processes.

import { createComputeThread } from '../../engine/node/compute-thread.ts';
import { deviceFacts } from '../../engine/node/host-node.ts';
import type { Graph } from '../../graph/graph.ts';
import type { RunFolder } from '../../storage/run-folder.ts';
import type { Dataset } from '../../training/data/dataset.ts';
import type { Observer } from '../protocol/events.ts';
import { type EvaluateOptions, type Evaluation, evaluateOn } from '../run/evaluate.ts';
import { type PredictOptions, predictOn } from '../run/predict.ts';
import { type PreparedRun, prepareRunOn, type SessionInput } from '../run/prepare.ts';
import { runPreparedOn, type SessionEnvironment, type SessionHost, type SessionResult } from '../run/session.ts';
import { type Comparison, verifyWith } from '../run/verify.ts';
import { checkHost } from './addresses.ts';
import { runCluster } from './cluster-run.ts';
import type { RunGuests } from './run-guests.ts';

const host: SessionHost = {
  createEngine: createComputeThread,
  memoryMiB: () => deviceFacts().memoryMiB,
  runCluster,
};

/** Fits settings, model and data together. Throws InputError where they do not fit. */
export function prepareRun(input: SessionInput): PreparedRun {
  return prepareRunOn(checkHost, input);
}

/**
 * Trains, tests, and writes into the folder; without a folder nothing is written. Throws RunError when the run fails,
 * InputError where the devices or the network do not allow it. `guests`: browsers at the server of the run's workers.
 */
export function runPrepared(
  run: PreparedRun,
  environment: SessionEnvironment,
  folder?: RunFolder,
  guests?: RunGuests,
): Promise<SessionResult> {
  const own: SessionHost =
    guests === undefined ? host : { ...host, runCluster: (options, cluster) => runCluster(options, cluster, guests) };
  return runPreparedOn(own, run, environment, folder);
}

/** Prepares and runs. Throws as `prepareRun` and `runPrepared` do. */
export async function runSession(
  input: SessionInput,
  environment: SessionEnvironment,
  folder?: RunFolder,
): Promise<SessionResult> {
  return runPrepared(prepareRun(input), environment, folder);
}

/**
 * Runs the session as it is, then again in this process with the same micro-batches, and compares. Undefined where it
 * was stopped before its end.
 */
export function verifyRun(
  input: SessionInput,
  environment: SessionEnvironment,
  onPart: (part: 'distributed' | 'single') => void,
): Promise<Comparison | undefined> {
  const { createEngine } = host;
  const runPart = (part: SessionInput, alsoObserve: Observer): Promise<SessionResult> =>
    runSession(part, {
      ...environment,
      observe: (event) => {
        environment.observe(event);
        alsoObserve(event);
      },
    });
  return verifyWith({ runSession: runPart, prepareRun, createEngine, signal: environment.signal }, input, onPart);
}

/**
 * Runs a model in inference mode over a data set. Every sample counts once, in the last, smaller batch too. Throws
 * InputError where they do not fit.
 */
export function evaluate(model: Graph, dataset: Dataset, options: EvaluateOptions): Promise<Evaluation> {
  return evaluateOn(createComputeThread, model, dataset, options);
}

/** What a model says of samples, in order: see `predictOn`. Throws InputError where they do not fit. */
export function predict(
  model: Graph,
  dataset: Dataset,
  options: PredictOptions,
): Promise<readonly (readonly number[])[]> {
  return predictOn(createComputeThread, model, dataset, options);
}
