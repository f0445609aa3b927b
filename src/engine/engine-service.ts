// The thread's side of an engine in a thread of its own (threaded-engine.ts): an engine that does what the messages
// say, in their order.

import { assert, defined, unreachable } from '../assert.ts';
import { discard, movable } from './buffers.ts';
import type { Engine, Executable, Translation, Value } from './engine.ts';
import { discardGraph, type PackedGraph, type ReadPlaced, unpackGraph } from './packed-graph.ts';
import { type Reply, type Request, sharedNow, toFailure } from './thread-messages.ts';

/** What a thread has to answer its caller with. */
export interface ServiceOptions {
  /** Posts to the caller; `moved` go along. */
  post(replies: readonly Reply[], moved: readonly ArrayBuffer[]): void;
  /** Reads what a graph has in files. Default: no graph has anything there. */
  readonly fileTensor?: ReadPlaced;
  /** See Engine. */
  readonly threadMs?: (() => number) | undefined;
}

/** An engine that answers its caller. */
export class EngineService {
  readonly #options: ServiceOptions;
  readonly #held: Held = { values: new Map(), executables: new Map() };
  #engine: Engine | undefined;
  #outbox: Reply[] = [];

  constructor(options: ServiceOptions) {
    this.#options = options;
  }

  /** A kernel of the GPU that the CPU computes in its place, in words. */
  detour(kernel: string): void {
    this.#send({ id: -1, busyMs: 0, detour: kernel });
  }

  /** Tells the caller that there is an engine, or why there is none. Requests come afterwards. */
  async start(making: Promise<Engine>): Promise<void> {
    try {
      const engine = await making;
      this.#engine = engine;
      const { name, warning, choice, blockSize, translationTarget } = engine;
      this.#send({ id: 0, busyMs: 0, name, warning, choice, blockSize, translationTarget });
    } catch (error) {
      this.#send({ id: 0, busyMs: 0, failure: toFailure(error) });
    }
  }

  /** Does what requests say. A handle that is unknown throws. */
  take(requests: readonly Request[]): void {
    for (const request of requests) this.#handle(request, defined(this.#engine, 'an engine that has started'));
  }

  #handle(request: Request, engine: Engine): void {
    if (!('id' in request)) return carryOut(request, engine, this.#held);
    const { id } = request;
    const spent = (): Pick<Reply, 'busyMs' | 'threadMs'> => ({
      busyMs: engine.busyMs(),
      threadMs: this.#options.threadMs?.(),
    });
    answerTo(request, engine, this.#held, this.#options.fileTensor).then(
      (result) => this.#send({ id, ...spent(), ...result }),
      (error: unknown) => this.#send({ id, ...spent(), failure: toFailure(error) }),
    );
  }

  /** Sends a reply together with all others of this moment: waking the other thread costs more than the message. */
  #send(reply: Reply): void {
    if (this.#outbox.length === 0) queueMicrotask(() => this.#flush());
    this.#outbox.push(
      reply.tensor === undefined ? reply : { ...reply, tensor: { ...reply.tensor, data: movable(reply.tensor.data) } },
    );
  }

  #flush(): void {
    const replies = this.#outbox;
    this.#outbox = [];
    const moved = replies.flatMap(({ tensor, translation }) => [tensor?.data.buffer, translation?.model.buffer]);
    this.#options.post(replies, [...new Set(moved.filter((buffer) => buffer instanceof ArrayBuffer))]);
  }
}

/** What the handles of requests stand for. */
interface Held {
  readonly values: Map<number, Value>;
  readonly executables: Map<number, Executable>;
}

type Asking = Extract<Request, { readonly id: number }>;

const noFiles: ReadPlaced = (_type, { file }) => {
  throw new Error(`there is no file ${file} here`);
};

/** Starts what a request asks for; resolves to what its reply holds. A handle that is unknown throws at once. */
function answerTo(
  request: Asking,
  engine: Engine,
  { values, executables }: Held,
  fileTensor: ReadPlaced = noFiles,
): Promise<Pick<Reply, 'tensor' | 'translation' | 'atMs'>> {
  switch (request.kind) {
    case 'compile':
      return compile(engine, request.source, fileTensor).then((executable) => {
        executables.set(request.executable, executable);
        return {};
      });
    case 'translate': {
      const translate = defined(engine.translate, 'an engine that translates');
      return translate(unpackGraph(request.graph, fileTensor)).then((translation) => ({ translation }));
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
async function compile(engine: Engine, source: PackedGraph | Translation, fileTensor: ReadPlaced): Promise<Executable> {
  if ('model' in source) return engine.compile(source);
  const graph = unpackGraph(source, fileTensor);
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
