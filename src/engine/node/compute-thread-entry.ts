// The thread's side of a compute thread: an engine that does what the messages say, in their order. Run as a worker by
// compute-thread.ts.

import { setPriority } from 'node:os';
import { parentPort, workerData } from 'node:worker_threads';
import { assert, defined, unreachable } from '../../assert.ts';
import { discard, movable } from '../buffers.ts';
import type { Engine, Executable, Translation, Value } from '../engine.ts';
import { createReferenceEngine } from '../reference.ts';
import { type Reply, type Request, sharedNow, type ThreadOptions, toFailure } from './compute-thread-messages.ts';
import { openThreadClock } from './host-linux.ts';
import { createOnnxRuntimeHereEngine } from './onnxruntime-here.ts';
import { discardGraph, type PackedGraph, unpackGraph } from './packed-graph.ts';
import { createWorkClock } from './work-clock.ts';

/**
 * A third of the weight of a normal thread while both want a core, or the least that there is; nothing is lost while
 * one is free.
 */
const [computePriority, courteousPriority] = [5, 19] as const;

const port = defined(parentPort, 'the parent of the compute thread');

async function createEngine(options: ThreadOptions): Promise<Engine> {
  const { engine, device, threadCount, maxCpu, isCourteous } = options;
  if (engine === 'onnxruntime')
    return createOnnxRuntimeHereEngine({
      ...{ device, threadCount, pacing: { maxCpu, isCourteous } },
      onDetour: (kernel, fault) => send({ id: -1, busyMs: 0, detour: `${kernel} (${fault})` }),
      // What a GPU does takes no processor time.
      ...(device === 'cpu' ? { now: createWorkClock(options) } : {}),
    });
  if (engine === 'reference') return createReferenceEngine();
  const module: unknown = await import(engine.module);
  return (module as { createEngine(options: { threadCount: number }): Promise<Engine> }).createEngine({ threadCount });
}

function serve(engine: Engine, { threadCount }: ThreadOptions): void {
  const threadMs = threadCount === 1 && process.platform === 'linux' ? openThreadClock() : undefined;
  const spent = (): Pick<Reply, 'busyMs' | 'threadMs'> => ({ busyMs: engine.busyMs(), threadMs: threadMs?.() });
  const held: Held = { values: new Map(), executables: new Map() };
  const handle = (request: Request): void => {
    if (!('id' in request)) return carryOut(request, engine, held);
    const { id } = request;
    answerTo(request, engine, held).then(
      (result) => send({ id, ...spent(), ...result }),
      (error: unknown) => send({ id, ...spent(), failure: toFailure(error) }),
    );
  };
  port.on('message', (requests: readonly Request[]) => {
    for (const request of requests) handle(request);
  });
  send({
    id: 0,
    busyMs: 0,
    name: engine.name,
    warning: engine.warning,
    blockSize: engine.blockSize,
    translationTarget: engine.translationTarget,
  });
}

/** What the handles of requests stand for. */
interface Held {
  readonly values: Map<number, Value>;
  readonly executables: Map<number, Executable>;
}

type Asking = Extract<Request, { readonly id: number }>;

/** Starts what a request asks for; resolves to what its reply holds. A handle that is unknown throws at once. */
function answerTo(
  request: Asking,
  engine: Engine,
  { values, executables }: Held,
): Promise<Pick<Reply, 'tensor' | 'translation' | 'atMs'>> {
  switch (request.kind) {
    case 'compile':
      return compile(engine, request.source).then((executable) => {
        executables.set(request.executable, executable);
        return {};
      });
    case 'translate': {
      const translate = defined(engine.translate, 'an engine that translates');
      return translate(unpackGraph(request.graph)).then((translation) => ({ translation }));
    }
    case 'download':
      return engine.download(known(values, request.handle)).then((tensor) => ({ tensor }));
    case 'take':
      return engine.take(removed(values, request.handle)).then((tensor) => ({ tensor }));
    case 'settled':
      return engine.settled().then(() => ({}));
    case 'computed':
      return engine.computed().then((agoMs) => ({ atMs: sharedNow() - agoMs }));
    case 'close':
      return engine.close().then(() => ({}));
    default:
      return unreachable(request);
  }
}

/** Compiles what belongs to this thread: of weights there are no more copies at a time than it takes. */
async function compile(engine: Engine, source: PackedGraph | Translation): Promise<Executable> {
  if ('model' in source) return engine.compile(source);
  const graph = unpackGraph(source);
  if (engine.translate === undefined) return engine.compile(graph);
  const translation = await engine.translate(graph);
  discardGraph(source);
  const executable = await engine.compile(translation);
  discard(translation.model);
  return executable;
}

/** Carries out a request that has no reply. */
function carryOut(request: Exclude<Request, Asking>, engine: Engine, { values, executables }: Held): void {
  switch (request.kind) {
    case 'run': {
      const inputs = Object.fromEntries(
        Object.entries(request.inputs).map(([name, input]) => [name, known(values, input)]),
      );
      const names = Object.keys(request.outputs);
      const results = defined(executables.get(request.executable), 'the graph').run(inputs, names, request.replaced);
      for (const input of Object.values(request.replaced ?? {})) values.delete(defined(request.inputs[input], input));
      for (const name of names) values.set(defined(request.outputs[name], name), defined(results[name], name));
      return;
    }
    case 'upload':
      values.set(request.handle, engine.upload(request.tensor));
      return;
    case 'draw':
      values.set(request.handle, engine.draw(request.shape, request.noise));
      return;
    case 'release':
      return engine.release(removed(values, request.handle));
    case 'trim':
      return engine.trim(request.leastBytes);
    case 'release-executable': {
      const executable = executables.get(request.executable);
      assert(executables.delete(request.executable), 'the graph is unknown');
      return executable?.release();
    }
    default:
      return unreachable(request);
  }
}

function known(values: ReadonlyMap<number, Value>, handle: number): Value {
  return defined(values.get(handle), `value ${handle}`);
}

function removed(values: Map<number, Value>, handle: number): Value {
  const value = known(values, handle);
  values.delete(handle);
  return value;
}

let outbox: Reply[] = [];

/** Sends a reply together with all others of this moment: waking the other thread costs more than the message. */
function send(reply: Reply): void {
  if (outbox.length === 0) queueMicrotask(flush);
  outbox.push(
    reply.tensor === undefined ? reply : { ...reply, tensor: { ...reply.tensor, data: movable(reply.tensor.data) } },
  );
}

function flush(): void {
  const replies = outbox;
  outbox = [];
  const moved = replies.flatMap(({ tensor, translation }) => [tensor?.data.buffer, translation?.model.buffer]);
  const buffers = new Set(moved.filter((buffer) => buffer instanceof ArrayBuffer));
  port.postMessage(replies, [...buffers]);
}

/**
 * Lets the threads that move bytes go first where cores are scarce: on Linux a priority belongs to the calling thread
 * and to those that it starts. Elsewhere it would be the whole process's, and stays as it is.
 */
function yieldToOthers({ isCourteous }: ThreadOptions): void {
  if (process.platform === 'linux') setPriority(0, isCourteous ? courteousPriority : computePriority);
}

const options = workerData as ThreadOptions;
yieldToOthers(options);
createEngine(options).then(
  (engine) => serve(engine, options),
  (error: unknown) => send({ id: 0, busyMs: 0, failure: toFailure(error) }),
);
