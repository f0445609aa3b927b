// An engine whose first run kills its thread, for tests of compute threads.

import type { Engine } from '../engine/engine.ts';
import { createReferenceEngine } from '../engine/reference.ts';

/** What a compute thread calls. */
export async function createEngine(): Promise<Engine> {
  const engine = createReferenceEngine();
  return {
    ...bound(engine),
    async compile(graph) {
      const executable = await engine.compile(graph);
      const run = (): never => {
        throw new Error('struck by lightning');
      };
      return { ...executable, run };
    },
  };
}

/** The engine as a plain object, whose methods can be replaced. */
function bound(engine: Engine): Engine {
  return {
    name: engine.name,
    blockSize: engine.blockSize,
    compile: (graph) => engine.compile(graph),
    upload: (value) => engine.upload(value),
    draw: (shape, noise) => engine.draw(shape, noise),
    download: (value) => engine.download(value),
    take: (value) => engine.take(value),
    release: (value) => engine.release(value),
    trim: (leastBytes) => engine.trim(leastBytes),
    settled: () => engine.settled(),
    computed: () => engine.computed(),
    valueBytes: () => engine.valueBytes(),
    busyMs: () => engine.busyMs(),
    close: () => engine.close(),
  };
}
