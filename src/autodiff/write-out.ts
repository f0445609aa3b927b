// The plain forms of deferred nodes: the same nodes that are written without deferring.

import { defined, unreachable } from '../assert.ts';
import type { Emitter } from '../graph/emitter.ts';
import { floatAttribute, type Node } from '../graph/graph.ts';
import { channelSample } from './centering.ts';
import { deferredOperator, slidingOf } from './deferred.ts';
import type { ConvolutionForms } from './forms.ts';
import { inputGradient, weightGradient } from './rules/convolution-forms.ts';
import { trainingGradients } from './rules/normalization.ts';

/**
 * Writes a deferred node in plain operators; returns the names of its outputs' values, in order (undefined for absent
 * ones).
 */
export function writeOut(e: Emitter, node: Node, forms: ConvolutionForms): readonly (string | undefined)[] {
  const operator = defined(deferredOperator(node), node.operator);
  const [a, b] = node.inputs as [string, string];
  switch (operator) {
    case 'ConvInputGradient': {
      const sliding = slidingOf(node);
      const [outputChannels = 1, perGroup = 1] = e.shape(b);
      const size = { sliding, samples: e.shape(a)[0] as number, channels: perGroup * sliding.group, outputChannels };
      return [inputGradient(e, { g: a, w: b, sliding, form: forms.inputGradient(size) })];
    }
    case 'ConvWeightGradient': {
      const sliding = slidingOf(node);
      const [samples = 1, channels = 1] = e.shape(a);
      const size = { sliding, samples, channels, outputChannels: e.shape(b)[1] as number };
      return [weightGradient(e, { x: a, g: b, sliding, form: forms.weightGradient(size) })];
    }
    case 'BatchNormalizationGradient': {
      const [g, x, scale, mean, variance] = node.inputs as [string, string, string, string, string];
      const parts = { g, x, scale, mean, variance, epsilon: floatAttribute(node, 'epsilon', 1e-5) };
      return trainingGradients(
        e,
        parts,
        node.outputs.map((output) => output !== ''),
      );
    }
    case 'ChannelSample':
      return [channelSample(e, a)];
    default:
      return unreachable(operator);
  }
}
