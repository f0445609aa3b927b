// Building blocks shared by several families of image networks. Parameters are named as in torchvision, so that its
// state dictionaries fit.

import type { GraphBuilder } from '../graph/builder.ts';
import { fans, heNormal, type Initialization, zeros } from '../graph/initialization.ts';

/** An activation of {@link GraphBuilder}; 'none' is the identity. */
export type Activation = 'relu' | 'relu6' | 'silu' | 'hardSwish' | 'tanh' | 'none';

/** A convolution without bias, batch normalization and an activation. */
export interface ConvNormOptions {
  /** Prefix of the tensors' names: `name.0` is the convolution, `name.1` the normalization. */
  readonly name: string;
  /** Names instead of `name.0` and `name.1`. */
  readonly names?: readonly [conv: string, norm: string];
  readonly outChannels: number;
  readonly kernel: number;
  readonly stride?: number;
  readonly groups?: number;
  readonly activation: Activation;
  /** Default: He et al., normal, by fan-out. */
  readonly weightInitialization?: Initialization;
  readonly norm?: NormOptions;
}

/** `momentum` as in ONNX: the fraction of the old running statistics that is kept (PyTorch's is one minus it). */
export interface NormOptions {
  readonly epsilon?: number;
  readonly momentum?: number;
}

/** Applies an activation by name. */
export function activate(b: GraphBuilder, x: string, activation: Activation): string {
  return activation === 'none' ? x : b[activation](x);
}

/** Convolution (padded to keep the size at stride 1), batch normalization, activation. */
export function convNorm(b: GraphBuilder, x: string, options: ConvNormOptions): string {
  const { name, outChannels, kernel, stride = 1, groups = 1, activation, norm = {} } = options;
  const [conv, normName] = options.names ?? [`${name}.0`, `${name}.1`];
  const { fanOut } = fans([outChannels, 1, kernel, kernel]);
  const y = b.conv2d(x, {
    name: conv,
    outChannels,
    kernel,
    stride,
    groups,
    padding: (kernel - 1) / 2,
    bias: false,
    weightInitialization: options.weightInitialization ?? heNormal(fanOut),
  });
  return activate(b, b.batchNorm(y, { name: normName, ...norm }), activation);
}

/** The parameters of a squeeze-and-excitation block. */
export interface SqueezeExciteOptions {
  readonly name: string;
  readonly squeezeChannels: number;
  readonly activation: 'relu' | 'silu';
  readonly gate: 'sigmoid' | 'hardSigmoid';
}

/**
 * x times a weight per sample and channel: gate(W₂ · activation(W₁ · mean(x))) (Hu et al. 2018), by 1x1 convolutions
 * `name.fc1` and `name.fc2`.
 */
export function squeezeExcite(b: GraphBuilder, x: string, options: SqueezeExciteOptions): string {
  const { name, squeezeChannels, activation, gate } = options;
  const channels = b.size(x, 1);
  const conv = (y: string, part: string, outChannels: number): string =>
    b.conv2d(y, {
      name: `${name}.${part}`,
      outChannels,
      kernel: 1,
      weightInitialization: heNormal(outChannels),
      biasInitialization: zeros,
    });
  const squeezed = b[activation](conv(b.globalAveragePool(x), 'fc1', squeezeChannels));
  return b.mul(b[gate](conv(squeezed, 'fc2', channels)), x);
}

/** The mean over each channel's plane: [N, C, H, W] to [N, C]. */
export function pooledFeatures(b: GraphBuilder, x: string): string {
  return b.flatten(b.globalAveragePool(x));
}

/** Dropout, or the value itself for a ratio of 0. */
export function dropoutOf(b: GraphBuilder, x: string, ratio: number): string {
  return ratio === 0 ? x : b.dropout(x, ratio);
}

/** Rounds a channel count to a multiple of 8, but never down by more than a tenth (torchvision's `_make_divisible`). */
export function roundChannels(channels: number): number {
  const rounded = Math.max(8, Math.floor((channels + 4) / 8) * 8);
  return rounded < 0.9 * channels ? rounded + 8 : rounded;
}
