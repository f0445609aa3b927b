// Whether this device's GPU computes what training needs: the kernels of small nets' training steps, each compared with
// the CPU's.

import { differentiate } from '../../autodiff/differentiate.ts';
import { createComputeThread } from '../../engine/node/compute-thread.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import type { Graph } from '../../graph/graph.ts';
import { instantiate } from '../../graph/static.ts';

/** See Finding. */
interface Found {
  readonly check: 'gpu';
  readonly state: 'fine' | 'warning';
  readonly text: string;
}

/** Compiles, on the GPU, passes of nets with the layers that most models have. */
export async function gpu(): Promise<Found> {
  const detours: string[] = [];
  try {
    const thread = await createComputeThread({ device: 'gpu', onDetour: (kernel) => detours.push(kernel) });
    try {
      for (const graph of trainingPasses()) (await thread.compile(graph)).release();
      await thread.settled();
    } finally {
      await thread.close();
    }
  } catch (error) {
    const text = (error instanceof Error ? error.message : String(error)).replace(/\.$/, '');
    return { check: 'gpu', state: 'warning', text };
  }
  return detours.length === 0
    ? { check: 'gpu', state: 'fine', text: 'computes what the CPU computes' }
    : {
        check: 'gpu',
        state: 'warning',
        text: `some kernels are left to the CPU: ${detours.join(', ')}; a newer driver may have them right`,
      };
}

function trainingPasses(): readonly Graph[] {
  return [convolutions(), attention()].flatMap((graph) => {
    const { forward, backward } = differentiate(instantiate(graph, 2), { inputs: [] });
    return [forward, backward];
  });
}

/** With and without padding, strides, groups; batch normalization and pools. */
function convolutions(): Graph {
  const b = new GraphBuilder('convolutions', { seed: 1 });
  const conv = (x: string, name: string, options: object): string =>
    b.relu(
      b.batchNorm(b.conv2d(x, { name, outChannels: 8, kernel: 3, bias: false, ...options }), { name: `${name}.bn` }),
    );
  let x = conv(b.input('x', 'float32', ['N', 6, 16, 16]), 'plain', {});
  x = conv(x, 'padded', { padding: 1, stride: 2 });
  x = conv(x, 'depthwise', { padding: 1, groups: 8 });
  x = b.maxPool2d(x, { kernel: 2, stride: 2 });
  return b.build([b.linear(b.flatten(b.globalAveragePool(x)), { name: 'head', outFeatures: 3 })]);
}

/** An embedding, a layer normalization, products of matrices, a softmax and a GELU. */
function attention(): Graph {
  const b = new GraphBuilder('attention', { seed: 2 });
  const ids = b.input('ids', 'int64', ['N', 4]);
  const x = b.layerNorm(b.embedding(ids, { name: 'embedding', count: 5, width: 8 }), { name: 'norm' });
  const [query, key] = ['query', 'key'].map((name) => b.linear(x, { name, outFeatures: 8 })) as [string, string];
  const mixed = b.matMul(b.softmax(b.matMul(query, b.transpose(key, [0, 2, 1]))), x);
  return b.build([b.linear(b.gelu(mixed), { name: 'head', outFeatures: 3 })]);
}
