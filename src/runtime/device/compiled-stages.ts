// Compiling stages, and not compiling them twice: after a fault all wait while shares and ranges change, often to what
// they were before. An engine keeps the graphs of the stages that it runs and of the last few that it ran; files keep
// the translations of more, from one process to another.

import { defined } from '../../assert.ts';
import type { Engine, Executable, Translation } from '../../engine/engine.ts';
import { InputError } from '../../errors.ts';
import type { Graph } from '../../graph/graph.ts';
import { design, trainingTask } from './designers.ts';
import { graphsKey } from './graphs-key.ts';
import { decodeBundle, encodeBundle, type StageBundle } from './stage-bundle.ts';
import type { ByGraph, PassNotes, StageGraphName, StageLayout, StageOptions } from './stage-graphs.ts';
import { stageLayout } from './stage-layout.ts';

/** Bytes by key, for other processes and other days. May lose anything at any time; what it gives is whole. */
export interface StageStore {
  read(key: string): Promise<Uint8Array | undefined>;
  /** Never rejects: what cannot be kept is made again. */
  write(key: string, pieces: readonly Uint8Array[]): Promise<void>;
}

/** The graphs of a stage on an engine. */
interface Graphs {
  /** Undefined for a device without samples. */
  readonly pass: PassNotes | undefined;
  readonly graphs: ByGraph<Executable>;
}

/** All that a stage runs. */
export interface CompiledStage extends StageLayout, Graphs {
  /** To be called once, when the graphs are not needed any more. */
  release(): void;
}

/** Stages of which nobody needs the graphs any more that stay compiled: the one before a change, and one more. */
const keptCount = 2;
/** Stages that were prepared and not used yet that stay compiled: one for each of a few losses. */
const preparedCount = 4;

/**
 * Layers [first, end) for a share of a micro-batch, from what was compiled before or kept in `store` where it can be.
 */
export async function compileStage(engine: Engine, options: StageOptions, store?: StageStore): Promise<CompiledStage> {
  const key = graphsKey(engine, options);
  const { graphs, release } = await libraryOf(engine).use(key, () => compile(engine, options, store && { key, store }));
  return { ...stageLayout(options), ...graphs, release };
}

/** Compiles a stage that may be used later. Of several, the last few stay. */
export async function prepareStage(engine: Engine, options: StageOptions, store: StageStore): Promise<void> {
  const key = graphsKey(engine, options);
  await libraryOf(engine).prepare(key, () => compile(engine, options, { key, store }));
}

function libraryOf(engine: Engine): Library {
  const library = libraries.get(engine) ?? new Library();
  libraries.set(engine, library);
  return library;
}

const libraries = new WeakMap<Engine, Library>();

interface Entry {
  readonly loading: Promise<Graphs>;
  userCount: number;
}

/** The compiled stages of one engine. */
class Library {
  readonly #entries = new Map<string, Entry>();
  /** The graphs of stages without users, in the order in which they lost the last. */
  readonly #unused = new Map<string, ByGraph<Executable>>();
  /** The graphs of stages that had no user yet, in the order in which they were prepared. */
  readonly #prepared = new Map<string, ByGraph<Executable>>();

  async use(key: string, make: () => Promise<Graphs>): Promise<{ readonly graphs: Graphs; release(): void }> {
    const entry = this.#entry(key, make);
    this.#unused.delete(key);
    this.#prepared.delete(key);
    const graphs = await this.#loaded(key, entry);
    return { graphs, release: () => this.#release(key, entry, graphs) };
  }

  async prepare(key: string, make: () => Promise<Graphs>): Promise<void> {
    if (this.#entries.has(key)) return;
    const entry = this.#entry(key, make);
    const { graphs } = await this.#loaded(key, entry);
    if (--entry.userCount > 0) return;
    this.#prepared.set(key, graphs);
    this.#shorten(this.#prepared, preparedCount);
  }

  #entry(key: string, make: () => Promise<Graphs>): Entry {
    const entry: Entry = this.#entries.get(key) ?? { loading: make(), userCount: 0 };
    entry.userCount++;
    this.#entries.set(key, entry);
    return entry;
  }

  async #loaded(key: string, entry: Entry): Promise<Graphs> {
    try {
      return await entry.loading;
    } catch (error) {
      if (this.#entries.get(key) === entry) this.#entries.delete(key);
      throw error;
    }
  }

  #release(key: string, entry: Entry, { graphs }: Graphs): void {
    if (--entry.userCount > 0) return;
    this.#unused.set(key, graphs);
    this.#shorten(this.#unused, keptCount);
  }

  #shorten(kept: Map<string, ByGraph<Executable>>, count: number): void {
    for (const [oldest, executables] of [...kept].slice(0, -count)) {
      kept.delete(oldest);
      this.#entries.delete(oldest);
      for (const executable of Object.values(executables)) executable.release();
    }
  }
}

interface Place {
  readonly key: string;
  readonly store: StageStore;
}

async function compile(engine: Engine, options: StageOptions, place: Place | undefined): Promise<Graphs> {
  if (engine.translate === undefined) {
    const { pass, graphs } = design(engine, trainingTask(options));
    return { pass, graphs: await eachGraph(graphs, (graph) => engine.compile(graph)) };
  }
  const kept = await place?.store.read(place.key);
  if (kept !== undefined) {
    try {
      return await load(engine, decodeBundle(kept));
    } catch (error) {
      // The engine takes what it translated before; if not, it says so of the new translation too.
      if (!(error instanceof InputError)) throw error;
    }
  }
  const bundle = await translateStage(engine, options, defined(engine.translate, 'an engine that translates'));
  const graphs = await load(engine, bundle);
  // Not waited for: the stage can begin.
  void place?.store.write(place.key, encodeBundle(bundle));
  return graphs;
}

/** All of a stage that takes long to find. */
export async function translateStage(
  engine: Pick<Engine, 'blockSize'>,
  options: StageOptions,
  translateGraph: (graph: Graph) => Translation | Promise<Translation>,
): Promise<StageBundle> {
  const { pass, graphs } = design(engine, trainingTask(options));
  // The runtime's own fusions depend on what stands around a layer too.
  const isStrict = options.training.grain !== undefined;
  const translated = async (graph: Graph): Promise<Translation> => {
    const translation = await translateGraph(graph);
    return isStrict ? { ...translation, isOptimizable: false } : translation;
  };
  return { pass, translations: await eachGraph(graphs, translated) };
}

async function load(engine: Engine, { pass, translations }: StageBundle): Promise<Graphs> {
  return { pass, graphs: await eachGraph(translations, (translation: Translation) => engine.compile(translation)) };
}

/** All graphs at once: an engine in a thread of its own gets one message. */
async function eachGraph<From, To>(graphs: ByGraph<From>, convert: (from: From) => Promise<To>): Promise<ByGraph<To>> {
  const entries = Object.entries(graphs) as [StageGraphName, From][];
  return Object.fromEntries(
    await Promise.all(entries.map(async ([name, graph]) => [name, await convert(graph)] as const)),
  );
}
