// The losses of ONNX: cross entropy from scores, and from log probabilities. Ignored labels contribute nothing.

import { type Attribute, intAttribute, stringAttribute } from '../graph.ts';
import { check } from '../operators/define.ts';
import { tensor } from '../tensor.ts';
import type { Composite } from './composite.ts';
import { range, type Writer } from './writer.ts';

const attributes: Readonly<Record<string, Attribute['type']>> = { ignore_index: 'int', reduction: 'string' };

export const lossComposites: Readonly<Record<string, Composite>> = {
  NegativeLogLikelihoodLoss: {
    inputs: [2, 3],
    attributes,
    otherTypes: [1],
    write: (w) => [negativeLogLikelihood(w, w.input(0))],
  },
  SoftmaxCrossEntropyLoss: {
    inputs: [2, 3],
    attributes,
    otherTypes: [1],
    write(w) {
      const logarithms = w.op('LogSoftmax', [w.input(0)], { axis: { type: 'int', value: 1 } });
      return [negativeLogLikelihood(w, logarithms), logarithms];
    },
  },
};

/** −Σ weight[label]·x[label] over the samples, divided by Σ weight[label] for the mean. x [N, C, …], labels [N, …]. */
function negativeLogLikelihood(w: Writer, x: string): string {
  const { node } = w;
  const labels = w.input(1);
  const shape = w.shape(x);
  const classes = shape[1] as number;
  check(
    shape.length >= 2 && w.shape(labels).length === shape.length - 1,
    node,
    () => `wants labels of rank ${shape.length - 1}`,
  );
  const ignored = node.attributes['ignore_index'] === undefined ? undefined : intAttribute(node, 'ignore_index', 0);
  const kept = ignored === undefined ? undefined : w.op('Not', [w.op('Equal', [labels, w.like(labels, ignored)])]);
  const known = kept === undefined ? labels : w.op('Where', [kept, labels, w.like(labels, 0)]);
  // One element a label: x · (class = label) · weight, summed over the classes.
  const numbers = w.constant(
    tensor(w.type(labels), [classes, ...range(shape.length - 2).map(() => 1)], range(classes)),
  );
  const column = w.reshape(known, [shape[0] as number, 1, ...shape.slice(2)]);
  let hits = w.cast(w.op('Equal', [column, numbers]), w.type(x));
  if (kept !== undefined) hits = w.mul(hits, w.cast(w.reshape(kept, w.shape(column)), w.type(x)));
  const weights = w.optional(2);
  const weighted =
    weights === undefined ? hits : w.mul(hits, w.reshape(weights, [classes, ...range(shape.length - 2).map(() => 1)]));
  const losses = w.op('Neg', [w.reduce('ReduceSum', w.mul(weighted, x), [1], false)]);
  const reduction = stringAttribute(node, 'reduction', 'mean');
  if (reduction === 'none') return losses;
  const axes = range(shape.length - 1);
  if (reduction === 'sum') return w.reduce('ReduceSum', losses, axes, false);
  check(reduction === 'mean', node, () => `has reduction "${reduction}"; it may be "none", "sum" or "mean"`);
  if (weights === undefined && kept === undefined) return w.reduce('ReduceMean', losses, axes, false);
  const total = w.reduce('ReduceSum', weighted, range(shape.length), false);
  return w.div(w.reduce('ReduceSum', losses, axes, false), total);
}
