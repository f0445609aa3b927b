// Values of flags that several commands share. A wrong one is an InputError that names the flag and the value.

import { type DeviceChoice, deviceChoices } from '../engine/engine.ts';
import { InputError } from '../errors.ts';

/** A flag that must be a whole number of at least 1. */
export function positive(flag: string, text: string): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 1)
    throw new InputError(`${flag} ${text} must be a whole number of at least 1.`);
  return value;
}

/** A flag that must name an engine. */
export function engineName(text: string): 'onnxruntime' | 'reference' {
  if (text === 'onnxruntime' || text === 'reference') return text;
  throw new InputError(`--engine ${text} must be one of onnxruntime, reference.`);
}

/** A flag that must name a device to compute on. */
export function deviceName(text: string): DeviceChoice {
  const found = deviceChoices.find((choice) => choice === text);
  if (found === undefined) throw new InputError(`--device ${text} must be one of ${deviceChoices.join(', ')}.`);
  return found;
}

/** Values of an option that may be given several times. */
export function collected(value: string, all: readonly string[]): string[] {
  return [...all, value];
}

/** A flag that must be a whole number of any sign. */
export function integer(flag: string, text: string): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isInteger(value)) throw new InputError(`${flag} ${text} must be a whole number.`);
  return value;
}
