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

/** ADDRESS:PORT, an address of IPv6 in brackets. Throws InputError. */
export function addressAndPort(flag: string, text: string): { readonly host: string; readonly port: number } {
  const found = /^(?:\[([0-9a-f:.]+)\]|([\w.-]+)):(\d{1,5})$/i.exec(text);
  const port = Number(found?.[3]);
  const host = found?.[1] ?? found?.[2];
  if (host === undefined || !(port <= 65_535))
    throw new InputError(`${flag} ${text} is not ADDRESS:PORT, such as 127.0.0.1:8000: write it so.`);
  return { host, port };
}
