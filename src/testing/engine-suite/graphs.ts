// Small graphs for the acceptance suite of engines, and how it uses an engine.

import type { Engine } from '../../engine/engine.ts';
import { Emitter } from '../../graph/emitter.ts';
import type { Graph } from '../../graph/graph.ts';
import type { ElementType, Tensor } from '../../graph/tensor.ts';

/** Runs `use` with an engine of its own, which is closed afterwards. */
export type WithEngine = (use: (engine: Engine) => Promise<void>) => Promise<void>;

/** y = x + step on a vector. */
export function addGraph(step: number, size = 2): Graph {
  const emitter = new Emitter();
  const x = emitter.input('x', 'float32', [size]);
  emitter.append({
    operator: 'Add',
    domain: '',
    name: 'add',
    inputs: [x, emitter.scalarLike(x, step)],
    outputs: ['y'],
    attributes: {},
  });
  return emitter.build('add', ['y']);
}

/**
 * picked = x[positions[index]], where positions are 0 and 1: fails where the index is out of range, on a GPU too, whose
 * own `Gather` takes any index for one within.
 */
export function pickGraph(): Graph {
  const emitter = new Emitter();
  const [x, index] = [emitter.input('x', 'float32', [2]), emitter.input('index', 'int64', [1])];
  const inputs = [x, emitter.emit('Gather', [emitter.int64s([0, 1]), index])];
  emitter.append({ operator: 'Gather', domain: '', name: 'pick', inputs, outputs: ['picked'], attributes: {} });
  return emitter.build('picking', ['picked']);
}

export function identityGraph(type: ElementType, shape: readonly number[]): Graph {
  const emitter = new Emitter();
  const target = emitter.int64s(shape);
  emitter.append({
    operator: 'Reshape',
    domain: '',
    name: 'same',
    inputs: [emitter.input('x', type, shape), target],
    outputs: ['y'],
    attributes: {},
  });
  return emitter.build('identity', ['y']);
}

/** A copy with a buffer of its own, for the engine to take. */
export function copyOf(value: Tensor): Tensor {
  return { ...value, data: value.data.slice() };
}
