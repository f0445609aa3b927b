// The built-in models by name. Each is a function of a seed; weights are drawn by the seed and each parameter's name.

import { InputError } from '../errors.ts';
import type { Graph } from '../graph/graph.ts';
import { digitsNet } from './digits.ts';

export const zoo: Readonly<Record<string, (seed: number) => Graph>> = {
  digits: digitsNet,
};

/** The built-in model `name`, or InputError with the list of names. */
export function zooModel(name: string, seed: number): Graph {
  const make = Object.hasOwn(zoo, name) ? zoo[name] : undefined;
  if (make === undefined)
    throw new InputError(
      `There is no built-in model "${name}" (there are: ${Object.keys(zoo).join(', ')}); give the path of an .onnx file.`,
    );
  return make(seed);
}
