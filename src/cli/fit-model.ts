// A built-in model made to fit the data: as many outputs as there are classes, pictures of the size that was asked for.
// What the user wrote stays as it is.

import { InputError } from '../errors.ts';
import type { Graph } from '../graph/graph.ts';
import { elementCount } from '../graph/tensor.ts';
import { splitSpec } from '../models/options.ts';
import { buildModel, isZooSpec, zoo } from '../models/zoo.ts';
import type { Dataset } from '../training/data/dataset.ts';
import type { PictureInput } from '../training/data/pictures/picture-form.ts';
import type { TextInput } from '../training/data/texts/text-form.ts';
import type { LossKind } from '../training/losses.ts';

type Option = 'input' | 'classes' | 'features';

/** The spec with this option, unless it has the option already or names no built-in model that takes it. */
export function withOption(spec: string, option: Option, value: number | undefined): string {
  if (value === undefined || !isZooSpec(spec)) return spec;
  const { options } = splitSpec(spec);
  const { name } = buildModel(spec, { initialize: false });
  const takesIt = zoo.find((entry) => entry.name === name)?.defaults[option] !== undefined;
  if (!takesIt || options.split(',').some((part) => part.startsWith(`${option}=`))) return spec;
  return `${spec}${options === '' ? (spec.includes(':') ? '' : ':') : ','}${option}=${value}`;
}

/**
 * The spec of a model for this data set: with its number of classes, where these have names. A model for tables gets as
 * many inputs as the rows have numbers, and as many outputs as there are classes, or labels to come near.
 */
export function withClasses(spec: string, dataset: Dataset, loss: LossKind): string {
  const { classNames, classCount, labels, inputs, preparation } = dataset;
  if (preparation?.kind !== 'table')
    return withOption(spec, 'classes', classNames === undefined ? undefined : classCount);
  const sized = withOption(spec, 'features', inputs[0]?.values.shape[1]);
  if (sized === spec) return withOption(spec, 'classes', classNames === undefined ? undefined : classCount);
  const isOfClasses = loss === 'cross-entropy' || loss === 'focal';
  return withOption(sized, 'classes', isOfClasses ? classCount : elementCount(labels.values.shape.slice(1)));
}

/** A built-in model without weights, to see what it takes. */
export function zooGraph(spec: string): Graph {
  return buildModel(spec, { initialize: false }).graph;
}

/** What a model takes as pictures: the sizes that its input fixes; nothing if it takes something else. */
export function pictureInputOf({ inputs }: Pick<Graph, 'inputs'>): PictureInput {
  const [input] = inputs;
  if (inputs.length !== 1 || input?.shape.length !== 4) return {};
  const [, channels, height, width] = input.shape.map((size) => (typeof size === 'number' ? size : undefined));
  return {
    ...(channels === undefined ? {} : { channels }),
    ...(height === undefined ? {} : { height }),
    ...(width === undefined ? {} : { width }),
  };
}

/** What a model takes as texts: its inputs' names, their length, and the rows of the table of its tokens. */
export function textInputOf({ inputs, nodes, initializers }: Graph): TextInput {
  const length = inputs[0]?.shape[1];
  const ids = inputs.find(({ name }) => name === 'input_ids') ?? inputs[0];
  const table = nodes.find(({ operator, inputs: given }) => operator === 'Gather' && given[1] === ids?.name)?.inputs[0];
  const rowCount = table === undefined ? undefined : initializers.get(table)?.shape[0];
  return {
    names: inputs.map(({ name }) => name),
    ...(inputs[0]?.shape.length === 2 && typeof length === 'number' ? { length } : {}),
    ...(rowCount === undefined ? {} : { vocabularySize: rowCount }),
  };
}

/** Throws InputError for pictures and a model that takes none; a note where the model has outputs without a class. */
export function checkClasses({ outputs, inputs }: Graph, data: Dataset): readonly string[] {
  const { classNames, preparation } = data;
  if (preparation?.kind === 'pictures' && inputs[0]?.shape.length !== 4)
    throw new InputError(
      `The model's input ${inputs[0]?.name} has the shape [${inputs[0]?.shape.join(', ')}], and pictures are ` +
        '[N, channels, height, width]: choose a model for pictures.',
    );
  const count = outputs[0]?.shape.at(-1);
  if (classNames === undefined || typeof count !== 'number' || count <= classNames.length) return [];
  return [
    `The model has ${count} outputs, and the data have ${classNames.length} classes: --head-classes ` +
      `${classNames.length} replaces its classifier by one of that size.`,
  ];
}
