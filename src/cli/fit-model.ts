// A built-in model made to fit the data: as many outputs as there are classes, pictures of the size that was asked for.
// What the user wrote stays as it is.

import { InputError } from '../errors.ts';
import type { Graph } from '../graph/graph.ts';
import { splitSpec } from '../models/options.ts';
import { buildModel, isZooSpec, zoo } from '../models/zoo.ts';
import type { Dataset } from '../training/data/dataset.ts';
import type { PictureInput } from '../training/data/pictures/picture-form.ts';

type Option = 'input' | 'classes';

/** The spec with this option, unless it has the option already or names no built-in model that takes it. */
export function withOption(spec: string, option: Option, value: number | undefined): string {
  if (value === undefined || !isZooSpec(spec)) return spec;
  const { options } = splitSpec(spec);
  const { name } = buildModel(spec, { initialize: false });
  const takesIt = zoo.find((entry) => entry.name === name)?.defaults[option] !== undefined;
  if (!takesIt || options.split(',').some((part) => part.startsWith(`${option}=`))) return spec;
  return `${spec}${options === '' ? (spec.includes(':') ? '' : ':') : ','}${option}=${value}`;
}

/** The spec of a model for this data set: with its number of classes, where these have names. */
export function withClasses(spec: string, { classNames, classCount }: Dataset): string {
  return withOption(spec, 'classes', classNames === undefined ? undefined : classCount);
}

/** What a built-in model takes as pictures. */
export function zooPictureInput(spec: string): PictureInput {
  return pictureInputOf(buildModel(spec, { initialize: false }).graph);
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
