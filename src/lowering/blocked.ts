// Lowers a graph to the blocked layout of ONNX Runtime's CPU kernels: convolutions, their gradients, batch
// normalizations and the operators between them stay blocked from layer to layer; values are converted only where
// something reads them in another layout. Other nodes are unchanged, and deferred gradients without a blocked form are
// written out in plain form.

import { deferredOperator, slidingOf } from '../autodiff/deferred.ts';
import type { TrainingPass } from '../autodiff/differentiate.ts';
import { slice } from '../autodiff/expressions.ts';
import { type ConvolutionForms, plainForms, type Sliding } from '../autodiff/forms.ts';
import { writeOut } from '../autodiff/write-out.ts';
import { Emitter } from '../graph/emitter.ts';
import { floatAttribute, intAttribute, type Node } from '../graph/graph.ts';
import { windowOf } from '../graph/operators/windows.ts';
import { blockedSample, centeredConvolution, shifted } from './centering.ts';
import { hasInputGradient, hasWeightGradient, inputGradient, weightGradient } from './convolution-gradients.ts';
import { convolution, isBlockable } from './convolutions.ts';
import { Fusing, isBatchStatistics, type Source } from './fusing.ts';
import { ImageLowering, isFloatImage } from './images.ts';
import { Layouts } from './layouts.ts';
import { batchNormalization, batchNormalizationGradient } from './normalizations.ts';

export interface BlockedOptions {
  /** Channels of a block: 16 with AVX-512, 8 with AVX2. */
  readonly block: number;
  /** Chooses the plain forms of gradients that are not blocked. */
  readonly forms?: ConvolutionForms;
}

/** The pass on the blocked layout; the layout of its inputs and outputs is unchanged. */
export function lowerPass(
  { emitter, forwardCount, results, gradients }: TrainingPass,
  options: BlockedOptions,
): TrainingPass {
  const { inputs, initializers, nodes } = emitter;
  const source = { inputs, initializers, nodes, type: (name: string) => emitter.type(name) };
  const lowering = new BlockedLowering(source, new Set([...results, ...gradients.values()]), options);
  lowering.lower(nodes.slice(0, forwardCount));
  lowering.finish(results);
  const lowered = lowering.emitter.nodes.length;
  lowering.lower(nodes.slice(forwardCount));
  const plain = new Map([...gradients].map(([name, gradient]) => [name, lowering.plain(gradient)]));
  return { emitter: lowering.emitter, forwardCount: lowered, results, gradients: plain };
}

class BlockedLowering {
  readonly emitter: Emitter = new Emitter('low.', { shareNodes: true });
  readonly #l: Layouts;
  readonly #fusing: Fusing;
  readonly #images: ImageLowering;
  readonly #forms: ConvolutionForms;
  /** Samples of blocked images' channels, [C rounded up], by their names in the old graph. */
  readonly #samples = new Map<string, string>();
  /** Results of convolutions that are centred for a normalization: it is written on blocked values in any case. */
  readonly #normalized = new Set<string>();

  /** `results`: values that are read by others than the nodes. */
  constructor(source: Source, results: ReadonlySet<string>, { block, forms = plainForms }: BlockedOptions) {
    this.#l = new Layouts(this.emitter, source.type, block);
    this.#fusing = new Fusing(source, results, this.#l);
    this.#images = new ImageLowering(this.#l, this.emitter, this.#fusing);
    this.#forms = forms;
    for (const input of source.inputs)
      this.#l.setPlain(this.emitter.input(input.name, input.type, input.shape as readonly number[]));
    for (const [key, value] of source.initializers) this.#l.setPlain(this.emitter.initializer(key, value));
  }

  /** Writes some of the nodes, in order. */
  lower(nodes: readonly Node[]): void {
    for (const node of nodes) if (!this.#fusing.isDone(node)) this.#lower(node);
  }

  /** The value's name in row-major order. */
  plain(value: string): string {
    return this.#l.plain(value);
  }

  /** Makes these values available under their own names. */
  finish(values: readonly string[]): void {
    for (const value of values) {
      const name = this.#l.plain(value);
      if (name === value) continue;
      const node = {
        operator: 'Identity',
        domain: '',
        name: this.emitter.fresh('Identity'),
        inputs: [name],
        outputs: [value],
        attributes: {},
      };
      this.emitter.append(node);
    }
  }

  #lower(node: Node): void {
    if (!this.#lowerBlocked(node)) this.#keep(node);
  }

  /** Writes the node unchanged, on plain values. */
  #keep(node: Node): void {
    const inputs = node.inputs.map((input) => (input === '' ? '' : this.#l.plain(input)));
    if (deferredOperator(node) !== undefined) {
      writeOut(this.emitter, { ...node, inputs }, this.#forms).forEach((name, index) => {
        if (name !== undefined && node.outputs[index] !== '') this.#l.setPlain(node.outputs[index] as string, name);
      });
      return;
    }
    this.emitter.appendTyped(
      { ...node, inputs },
      node.outputs.map((output) => (output === '' ? { type: 'float32', shape: [] } : this.#l.type(output))),
    );
    for (const output of node.outputs) if (output !== '') this.#l.setPlain(output);
  }

  /** Writes the node on blocked values; false if that is impossible or does not pay. */
  #lowerBlocked(node: Node): boolean {
    switch (deferredOperator(node)) {
      case 'ConvInputGradient':
        return this.#convInputGradient(node);
      case 'ConvWeightGradient':
        return this.#convWeightGradient(node);
      case 'BatchNormalizationGradient':
        return this.#batchNormalizationGradient(node);
      case 'ChannelSample':
        return this.#channelSample(node);
      default:
    }
    if (node.domain !== '') return false;
    switch (node.operator) {
      case 'Conv':
        return this.#conv(node);
      case 'BatchNormalization':
        return this.#batchNormalization(node);
      case 'Sub':
        return this.#centered(node) || this.#images.lower(node);
      default:
        return this.#images.lower(node);
    }
  }

  #set(output: string, { name, layout }: { readonly name: string; readonly layout: 'plain' | 'blocked' }): true {
    if (layout === 'plain') this.#l.setPlain(output, name);
    else this.#l.setBlocked(output, name);
    return true;
  }

  #conv(node: Node): boolean {
    const [x, w, b = ''] = node.inputs as [string, string, string?];
    if (!isFloatImage(this.#l, x)) return false;
    const shape = this.#l.shape(w);
    const sliding: Sliding = {
      ...windowOf(node, this.#l.shape(x).slice(2), shape.slice(2)),
      group: intAttribute(node, 'group', 1),
    };
    if (!isBlockable(this.#l, sliding, this.#l.shape(x)[1] as number, shape[0] as number)) return false;
    const y = node.outputs[0] as string;
    const bias = b === '' ? undefined : this.#l.plain(b);
    const centering = this.#fusing.centering(y);
    if (centering === undefined) return this.#set(y, convolution(this.#l, { x, w, bias, sliding }));
    const { result, sample } = centeredConvolution(this.#l, { x, w, bias, sliding });
    this.#l.setPlain(centering.sample, this.#l.reshape(sample, this.#l.shape(centering.sample)));
    this.#normalized.add(centering.centered);
    return this.#set(centering.centered, result);
  }

  #channelSample(node: Node): boolean {
    const [x, sample] = [node.inputs[0] as string, node.outputs[0] as string];
    if (!this.#l.isBlocked(x)) return false;
    const padded = blockedSample(this.#l, this.#l.blocked(x));
    this.#samples.set(sample, padded);
    const shape = this.#l.shape(sample);
    const kept = slice(this.emitter, padded, [0], [0], [shape[0] as number]);
    this.#l.setPlain(sample, this.#l.reshape(kept, shape));
    return true;
  }

  /** A blocked image minus a sample of its channels. */
  #centered(node: Node): boolean {
    const [x, sample] = node.inputs as [string, string];
    const padded = this.#samples.get(sample);
    if (padded === undefined || !this.#l.isBlocked(x)) return false;
    const offset = this.emitter.emit('Neg', [padded]);
    this.#l.setBlocked(node.outputs[0] as string, shifted(this.#l, this.#l.blocked(x), offset));
    return true;
  }

  #convInputGradient(node: Node): boolean {
    const [g, w] = node.inputs as [string, string];
    const sliding = slidingOf(node);
    const [outputChannels = 1, perGroup = 1] = this.#l.shape(w);
    const channels = perGroup * sliding.group;
    if (
      !isFloatImage(this.#l, g) ||
      !isBlockable(this.#l, sliding, channels, outputChannels) ||
      !hasInputGradient(sliding)
    )
      return false;
    if (sliding.group === 1 && channels < this.#l.block / 2) return false;
    return this.#set(node.outputs[0] as string, inputGradient(this.#l, { g, w, channels, sliding }));
  }

  #convWeightGradient(node: Node): boolean {
    const [x, g] = node.inputs as [string, string];
    const sliding = slidingOf(node);
    const [channels, outputChannels] = [this.#l.shape(x)[1] as number, this.#l.shape(g)[1] as number];
    if (
      !isFloatImage(this.#l, x) ||
      !isBlockable(this.#l, sliding, channels, outputChannels) ||
      !hasWeightGradient(sliding)
    )
      return false;
    if (sliding.group === 1 && channels < this.#l.block / 2) return false;
    this.#l.setPlain(node.outputs[0] as string, weightGradient(this.#l, { x, g, sliding }));
    return true;
  }

  #batchNormalization(node: Node): boolean {
    const [x, gamma, bias] = node.inputs as [string, string, string];
    if (!isFloatImage(this.#l, x) || !isBatchStatistics(node)) return false;
    if (!this.#l.isBlocked(x) && !this.#normalized.has(x)) return false;
    const [y, mean, variance] = node.outputs as [string, string, string];
    const { last, sum, activation } = this.#fusing.following(y);
    const written = batchNormalization(this.#l, {
      x: this.#l.blocked(x),
      channels: this.#l.shape(x)[1] as number,
      scale: this.#l.plain(gamma),
      bias: this.#l.plain(bias),
      epsilon: floatAttribute(node, 'epsilon', 1e-5),
      sum,
      activation,
    });
    this.#l.setBlocked(last, written.y);
    this.#l.setPlain(mean, written.mean);
    this.#l.setPlain(variance, written.variance);
    return true;
  }

  #batchNormalizationGradient(node: Node): boolean {
    const [g, x, gamma, mean, variance] = node.inputs as [string, string, string, string, string];
    if (!this.#l.isBlocked(x) && !this.#normalized.has(x)) return false;
    const [dx, dscale, dbias] = batchNormalizationGradient(this.#l, {
      g: this.#l.blocked(g),
      x: this.#l.blocked(x),
      channels: this.#l.shape(x)[1] as number,
      scale: this.#l.plain(gamma),
      mean: this.#l.plain(mean),
      variance: this.#l.plain(variance),
      epsilon: floatAttribute(node, 'epsilon', 1e-5),
    });
    if (node.outputs[0] !== '') this.#l.setBlocked(node.outputs[0] as string, dx);
    if (node.outputs[1] !== '') this.#l.setPlain(node.outputs[1] as string, dscale);
    if (node.outputs[2] !== '') this.#l.setPlain(node.outputs[2] as string, dbias);
    return true;
  }
}
