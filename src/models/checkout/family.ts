// What the families of pretrained nets have in common: the fields of their config.json, read and checked, and how a
// family's graph is written.

import { z } from 'zod';
import type { GraphBuilder } from '../../graph/builder.ts';
import { int, string } from '../../graph/graph.ts';
import { type Initialization, normal, zeros } from '../../graph/initialization.ts';

/** What is chosen for a run; the rest is the checkout's. */
export interface CheckoutOptions {
  /** Outputs of the head. Default: the checkout's own. */
  readonly classes?: number;
  /** Tokens of a sample. Default: 128, or as many as the net has positions for, if these are fewer. */
  readonly sequence?: number;
  /** All dropout ratios. Default: the checkout's own. */
  readonly dropout?: number;
  /** Seeds what the checkout does not have, such as a new head. Default 0. */
  readonly seed?: number;
  /** False leaves zeros in place of weights. Default true. */
  readonly initialize?: boolean;
}

/** What a net is for. */
export type CheckoutTask = 'texts' | 'language' | 'pictures';

/** A family of nets: how its config.json is read, and the graph that follows from it. */
export interface Family {
  readonly task: CheckoutTask;
  /** The prefix of names that files of the net without a head leave out, with its point. */
  readonly prefix: string;
  /** Names of what belongs to the head, which a checkout may lack. */
  readonly head: RegExp;
  /**
   * What transformers calls a module or a weight in memory, and PEFT with it, by its name in files. Absent: the same.
   */
  moduleName?(fileName: string): string;
  /** Reads a config.json. Throws ZodError. */
  open(config: unknown): OpenedFamily;
}

/** A net of a family. */
export interface OpenedFamily {
  /** Tokens that it has positions for; undefined: it takes no tokens. */
  readonly positions: number | undefined;
  /** Writes inputs and nodes; gives the name of the logits. */
  build(b: GraphBuilder, options: CheckoutOptions): string;
}

/** What is written down of a family. */
interface FamilyParts<Config> extends Pick<Family, 'task' | 'prefix' | 'head' | 'moduleName'> {
  positions?(config: Config): number;
  build(b: GraphBuilder, config: Config, options: CheckoutOptions): string;
}

/** A family whose fields a schema checks. */
export function family<Config>(schema: z.ZodType<Config>, parts: FamilyParts<Config>): Family {
  const { task, prefix, head, moduleName } = parts;
  return {
    ...{ task, prefix, head, ...(moduleName === undefined ? {} : { moduleName }) },
    open(given) {
      const config = schema.parse(given);
      return {
        positions: parts.positions?.(config),
        build: (b, options) => parts.build(b, config, options),
      };
    },
  };
}

/** A count, such as of tokens. */
export const size: z.ZodType<number> = z.number().int().min(1).max(10_000_000);
/** The width of an activation. */
export const widthField: z.ZodType<number> = z.number().int().min(1).max(100_000);
/** How many layers there are. */
export const layerCount: z.ZodType<number> = z.number().int().min(1).max(1000);
/** The probability of dropout. */
export const ratio: z.ZodType<number> = z.number().min(0).max(0.999);
/** What keeps a division from zero. */
export const epsilonOf = (usual: number): z.ZodDefault<z.ZodNumber> => z.number().positive().max(1).default(usual);

const activations = ['gelu', 'gelu_new', 'gelu_pytorch_tanh', 'gelu_fast', 'relu', 'relu6', 'silu', 'swish'] as const;

/** An activation by transformers' name. */
export const activationName: z.ZodType<ActivationName> = z.enum(activations);

export type ActivationName = (typeof activations)[number];

/** Applies an activation. */
export function activation(b: GraphBuilder, x: string, name: ActivationName): string {
  switch (name) {
    case 'gelu':
      return b.gelu(x);
    case 'gelu_new':
    case 'gelu_pytorch_tanh':
    case 'gelu_fast':
      return b.node('Gelu', [x], { approximate: string('tanh') });
    case 'relu6':
      return b.relu6(x);
    case 'relu':
      return b.relu(x);
    case 'silu':
    case 'swish':
      return b.silu(x);
  }
}

/** transformers' initial weights. */
export const initialWeights: Initialization = normal(0.02);

/** A linear layer with transformers' initial weights. */
export function dense(b: GraphBuilder, x: string, name: string, outFeatures: number, bias = true): string {
  return b.linear(x, { name, outFeatures, bias, weightInitialization: initialWeights, biasInitialization: zeros });
}

/** x divided by the root of its mean square over the last axis, times `name.weight`. */
export function rmsNorm(b: GraphBuilder, x: string, name: string, epsilon: number): string {
  const weight = b.parameter(`${name}.weight`, [b.size(x, -1)], { kind: 'constant', value: 1 });
  const meanSquare = b.node('ReduceMean', [b.mul(x, x), b.constant(lastAxis)], { keepdims: int(1) });
  const root = b.node('Sqrt', [b.add(meanSquare, b.scalarLike(x, epsilon))]);
  return b.mul(b.node('Div', [x, root]), weight);
}

const lastAxis = { type: 'int64', shape: [1], data: BigInt64Array.of(-1n) } as const;

/** What is added to scores where a position is not to be seen: its share underflows to zero. */
export const unseen = -1e9;

/** [N, S] of ones and zeros as what is added to scores: [N, 1, 1, S]. */
export function paddingMask(b: GraphBuilder, attentionMask: string): string {
  const seen = b.node('Cast', [attentionMask], { to: int(1) });
  const hidden = b.node('Sub', [b.constant({ type: 'float32', shape: [], data: Float32Array.of(1) }), seen]);
  const added = b.mul(hidden, b.scalarLike(hidden, unseen));
  return b.reshape(added, ['N', 1, 1, b.size(attentionMask, 1)]);
}
