// How outputs get into buffers of ours without a copy. onnxruntime-node 1.30 lets kernels write into tensors that a run
// is given for its outputs, and then copies every output into a new ArrayBuffer all the same, each zeroed first: a
// third of a stage's forward pass. It begins with the first output and stops with an error at one that is no tensor. So
// the file has an empty sequence as its first output; the run computes everything, and ends with that error instead of
// copying. Tried once when an engine is made: where a runtime behaves otherwise, outputs are what it returns.

import { Emitter } from '../graph/emitter.ts';
import type { Graph } from '../graph/graph.ts';
import { exportGraph } from '../graph/onnx/export.ts';
import { elementCount, type ValueType } from '../graph/tensor.ts';
import type { OnnxRuntime, RuntimeSession, RuntimeTensor } from './onnxruntime-module.ts';

/** The name of the first output of a file whose runs write in place. */
export const signalName = 'all outputs are written';

/** A runtime's way of running sessions whose file has the signal. */
export interface InPlace {
  /** Resolves when all of `targets`, tensors by output, are written. */
  run(
    session: RuntimeSession,
    feeds: Readonly<Record<string, RuntimeTensor>>,
    targets: Readonly<Record<string, RuntimeTensor>>,
  ): Promise<void>;
}

/**
 * Finds out with a small graph how this runtime reports that it met the signal; undefined if it does not, or writes
 * elsewhere.
 */
export async function probeInPlace(
  runtime: OnnxRuntime,
  options: Readonly<Record<string, unknown>>,
): Promise<InPlace | undefined> {
  const e = new Emitter();
  const negated = e.emit('Neg', [e.input('x', 'float32', [2])]);
  const written = new Float32Array(2);
  const x = new runtime.Tensor('float32', new Float32Array([1, 2]), [2]);
  let signal: string;
  try {
    const session = await runtime.InferenceSession.create(
      exportGraph(e.build('probe', [negated]), new Map(), { emptySequence: signalName }),
      options,
    );
    try {
      await session.run({ x }, { [signalName]: null, [negated]: new runtime.Tensor('float32', written, [2]) });
      return undefined; // It knows sequences, and has copied.
    } catch (error) {
      signal = messageOf(error);
    } finally {
      await session.release();
    }
  } catch {
    return undefined; // It has no sequences.
  }
  if (written[0] !== -1 || written[1] !== -2) return undefined;
  return {
    async run(session, feeds, targets) {
      try {
        await session.run(feeds, { [signalName]: null, ...targets });
      } catch (error) {
        if (messageOf(error) !== signal) throw error;
      }
    },
  };
}

/**
 * Whether all outputs are results of nodes, with elements: what else leaves a graph is copied by the runtime after its
 * nodes have run.
 */
export function canWriteInPlace({ nodes, outputs }: Graph): boolean {
  const computed = new Set(nodes.flatMap((node) => node.outputs));
  return outputs.every(({ name, shape }) => computed.has(name) && elementCount(shape as ValueType['shape']) > 0);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
