// A server of a model on this machine: the pipeline over workers, requests batched in front of it, and HTTP in front of
// those. It answers what it has taken before it ends.

import type { Clock } from '../../clock.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import type { CutTensor } from '../../graph/layers.ts';
import { allocate, elementCount, type Tensor } from '../../graph/tensor.ts';
import type { Observer, RunEvent } from '../protocol/events.ts';
import { comparisonOf, type PreparedInference, windowOf } from '../run/infer.ts';
import { InferenceRounds } from '../run/inference-rounds.ts';
import type { ServedModel } from '../run/open-inference.ts';
import { RequestBatcher } from '../run/request-batcher.ts';
import { ServeMetrics } from '../run/serve-metrics.ts';
import { inferHere } from './infer-here.ts';
import { type InferenceServer, startInferenceServer } from './inference-server.ts';
import type { RunGuests } from './run-guests.ts';
import { isEncrypted } from './security/admission.ts';
import { bearerToken } from './security/bearer-token.ts';
import { httpCertificate } from './security/http-certificate.ts';

export interface ServeSettings {
  readonly host: string;
  readonly port: number;
  /** What callers show. Absent: beyond this machine one is made, on it none is needed. */
  readonly token?: string;
  readonly insecure: boolean;
  readonly tlsCert?: string;
  readonly tlsKey?: string;
  readonly maxLatencyMs: number;
  readonly mostBodyMiB: number;
  /** Samples that may wait. */
  readonly queueLimit: number;
  readonly timeoutMs: number;
  /** The package's. */
  readonly version: string;
}

/** Where a server is reached. */
export interface Serving {
  readonly url: string;
  /** Absent: everybody may ask. */
  readonly token: string | undefined;
  /** A file with the certificate that callers trust; absent where the user's own, or none, is used. */
  readonly authorityFile: string | undefined;
}

export interface ServeEnvironment {
  readonly clock: Clock;
  readonly observe: Observer;
  /** Aborted: requests that have come are answered, then the server ends. */
  readonly signal: AbortSignal;
  /** Somebody listens. */
  onServing(serving: Serving): void;
  /** Requests are answered from now on: devices have compiled for all that may come. */
  onReady(): void;
  /** Browsers at the port at which workers join. */
  readonly guests?: RunGuests;
}

/** Serves until `signal` aborts. Throws InputError where nobody can listen, RunError when the pipeline fails. */
export async function serveHere(
  run: PreparedInference,
  settings: ServeSettings,
  { clock, observe, signal, onServing, onReady, guests }: ServeEnvironment,
): Promise<void> {
  const rounds = new InferenceRounds(comparisonOf(run));
  const metrics = new ServeMetrics();
  const state = { isReady: false, isWarm: false, devices: new Set<string>() };
  const { localCount } = run.settings.cluster;
  const batcher = new RequestBatcher({
    ...{ rounds, clock, queueLimit: settings.queueLimit, maxLatencyMs: settings.maxLatencyMs },
    batchSize: run.plan?.batchSize ?? run.settings.batchSize,
    roundLimit: windowOf(localCount + run.settings.remoteCount) + 1,
    ...(run.sequence.fixedBatch === undefined ? {} : { fixedBatch: run.sequence.fixedBatch }),
    onRound: (sampleCount) => metrics.round(sampleCount),
  });
  const ending = new AbortController();
  const firstTraining = onceTraining(() => {
    if (signal.aborted) return;
    const warm = batcher.roundSizes.map((sampleCount) => rounds.submit(zeros(run.sequence.inputs, sampleCount)));
    const warmed = (): void => {
      state.isWarm = true;
      onReady();
    };
    Promise.all(warm).then(warmed, () => {}); // a run that has failed says so
  });
  const watch = (event: RunEvent): void => {
    note(state, metrics, event);
    observe(event);
    firstTraining(event);
  };
  const server = await startServer(run, settings, { batcher, metrics, state, rounds });
  const drain = async (): Promise<void> => {
    await server.server.drain();
    rounds.end();
  };
  const onAbort = (): void => void drain();
  try {
    onServing(server);
    signal.addEventListener('abort', onAbort, { once: true });
    if (signal.aborted) onAbort();
    await inferHere(run, rounds, { clock, observe: watch, signal: ending.signal }, guests);
  } finally {
    signal.removeEventListener('abort', onAbort);
    state.isReady = false;
    await server.server.drain();
  }
}

interface ServerState {
  isReady: boolean;
  /** Rounds of all sizes have been answered once: devices have compiled for them. */
  isWarm: boolean;
  readonly devices: Set<string>;
}

function note(state: ServerState, metrics: ServeMetrics, event: RunEvent): void {
  if (event.kind === 'joined') state.devices.add(event.device);
  if (event.kind === 'left') state.devices.delete(event.device);
  // While work is shared out anew, requests wait.
  if (event.kind === 'phase' && event.phase === 'training') state.isReady = true;
  if (event.kind === 'phase' && (event.phase === 'waiting' || event.phase === 'ended')) state.isReady = false;
  if (event.kind === 'recovered') metrics.layoutChanged();
}

/** Calls `begin` when work has been shared out for the first time. */
function onceTraining(begin: () => void): Observer {
  let isBegun = false;
  return (event) => {
    if (isBegun || event.kind !== 'phase' || event.phase !== 'training') return;
    isBegun = true;
    begin();
  };
}

/** Samples that every model takes. */
function zeros(inputs: readonly CutTensor[], sampleCount: number): readonly Tensor[] {
  return inputs.map(({ type, shape }) => {
    const sizes = shape.map((size) => (size === 'N' ? sampleCount : size));
    return { type, shape: sizes, data: allocate(type, elementCount(sizes)) };
  });
}

async function startServer(
  run: PreparedInference,
  settings: ServeSettings,
  parts: {
    readonly batcher: RequestBatcher;
    readonly metrics: ServeMetrics;
    readonly state: ServerState;
    readonly rounds: InferenceRounds;
  },
): Promise<Serving & { readonly server: InferenceServer }> {
  const { batcher, metrics, state, rounds } = parts;
  const { host, port, insecure } = settings;
  const certificate = isEncrypted({ ...settings, insecure }) ? await httpCertificate(settings) : undefined;
  const token = bearerToken(host, settings.token);
  const model: ServedModel = { name: run.model.name, inputs: run.sequence.inputs, outputs: run.outputs };
  const server = await startInferenceServer({
    ...{ host, port, model, version: settings.version, timeoutMs: settings.timeoutMs },
    ...(certificate === undefined ? {} : { tls: certificate }),
    ...(token === undefined ? {} : { token }),
    mostBytes: settings.mostBodyMiB * bytesInMiB,
    mostSamples: settings.queueLimit,
    isReady: () => state.isReady && state.isWarm,
    infer: (inputs, given) => batcher.infer(inputs, given),
    metrics: () =>
      metrics.text({
        queuedSamples: batcher.queuedCount,
        openRounds: batcher.openCount,
        devices: state.devices.size,
        isReady: state.isReady && state.isWarm,
        residentBytes: process.memoryUsage.rss(),
        compared: rounds.compared,
      }),
    onAnswered: (status, seconds) => metrics.answered(status, seconds),
  });
  return { server, url: server.url, token, authorityFile: certificate?.authorityFile };
}
