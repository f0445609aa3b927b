// From a checkout's config.json to its graph: which family it is of, what it takes, which of its weights are the head.
// Weights are drawn as for a new net; whoever has the files puts theirs in place (storage/node/checkouts).

import { z } from 'zod';
import { InputError } from '../../errors.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import type { Graph } from '../../graph/graph.ts';
import { efficientnet, mobilenetV2, resnet } from './convolutional.ts';
import { gpt2, llama, qwen2 } from './decoders.ts';
import { bert, distilbert, roberta } from './encoders.ts';
import type { CheckoutOptions, CheckoutTask, Family, OpenedFamily } from './family.ts';
import { deit, vit } from './vision-transformers.ts';

/** A net as its config.json describes it. */
export interface BuiltCheckout {
  /** transformers' name of the family, such as "bert". */
  readonly modelType: string;
  readonly task: CheckoutTask;
  /** In training mode; parameters have the names of the checkout's files. */
  readonly graph: Graph;
  /** The prefix of names that files of the net without a head leave out. */
  readonly prefix: string;
  /** Names of the head, which a checkout may lack. */
  readonly head: RegExp;
  /** Tokens that it has positions for. */
  readonly positions?: number;
  readonly moduleName?: NonNullable<Family['moduleName']>;
}

const families: ReadonlyMap<string, Family> = new Map([
  ['bert', bert],
  ['distilbert', distilbert],
  ['roberta', roberta],
  ['vit', vit],
  ['deit', deit],
  ['resnet', resnet],
  ['mobilenet_v2', mobilenetV2],
  ['efficientnet', efficientnet],
  ['gpt2', gpt2],
  ['llama', llama],
  ['qwen2', qwen2],
]);

/** The families by transformers' names. */
export const checkoutFamilies: readonly string[] = [...families.keys()];

const typeSchema = z.object({ model_type: z.string().max(100) });

/** The most tokens of a sample where nothing says how many. */
const defaultSequence = 128;

/**
 * Builds the net of a config.json, which lies at `path`. Throws InputError for a family that is not known and for
 * fields that are missing or wrong.
 */
export function buildCheckout(config: unknown, path: string, options: CheckoutOptions = {}): BuiltCheckout {
  const type = typeSchema.safeParse(config);
  if (!type.success)
    throw new InputError(`${path} has no "model_type": it is no config.json of a net; take the one of the checkout.`);
  const modelType = type.data.model_type;
  const family = families.get(modelType);
  if (family === undefined)
    throw new InputError(
      `${path} is of the model_type ${JSON.stringify(modelType)}, which is not built in (there are: ` +
        `${checkoutFamilies.join(', ')}); export it to ONNX.`,
    );
  const { positions, build } = opened(family, config, path);
  const { sequence = Math.min(defaultSequence, positions ?? defaultSequence) } = options;
  if (positions !== undefined && sequence > positions)
    throw new InputError(
      `${path}: the net has positions for ${positions} tokens, and samples have ${sequence}: give --max-length ` +
        `${positions}.`,
    );
  const builder = new GraphBuilder(modelType, {
    seed: options.seed ?? 0,
    initialize: options.initialize ?? true,
  });
  const logits = built(() => build(builder, { ...options, sequence }), path);
  const graph: Graph = { ...builder.build([logits]), runningVariance: 'unbiased' };
  return {
    ...{ modelType, task: family.task, graph, prefix: family.prefix, head: family.head },
    ...(positions === undefined ? {} : { positions }),
    ...(family.moduleName === undefined ? {} : { moduleName: family.moduleName }),
  };
}

function opened(family: Family, config: unknown, path: string): OpenedFamily {
  try {
    return family.open(config);
  } catch (error) {
    if (!(error instanceof z.ZodError)) throw error;
    const [issue] = error.issues;
    throw new InputError(
      `${path}: "${(issue?.path ?? []).join('.')}" is missing, wrong or not supported (${issue?.message}); take the ` +
        'config.json that belongs to the weights, or export the net to ONNX.',
    );
  }
}

/** Sizes that do not fit together, such as a width that is no multiple of the heads, show when nodes are written. */
function built(build: () => string, path: string): string {
  try {
    return build();
  } catch (error) {
    throw new InputError(
      `${path}: its sizes do not fit together (${(error as Error).message}); take the config.json that belongs to ` +
        'the weights.',
      { cause: error },
    );
  }
}
