// The settings of adapters, as rows of the table in settings.ts.

import { z } from 'zod';
import type { TrainSettings } from '../runtime/run/settings.ts';
import { type Setting, text } from './setting-values.ts';

/** The rows, by name. */
export const adapterRows: Readonly<Record<keyof Pick<TrainSettings, 'lora' | 'adapter' | 'modulesToSave'>, Setting>> = {
  lora: {
    argument: 'PATTERN[:SETTINGS]',
    description:
      'train adapters (LoRA) beside weights of linear layers and convolutions, such as *query or ' +
      'q_proj:rank=8,alpha=16,dropout=0.05 (the settings are optional); the rest is frozen; may be repeated',
    schema: z.array(text),
    default: [],
    isList: true,
  },
  adapter: {
    argument: 'DIR',
    description: "go on from an adapter of PEFT's: adapter_config.json and adapter_model.safetensors",
    schema: text,
  },
  modulesToSave: {
    argument: 'PATTERN',
    description:
      'with --lora: weights that are trained whole, such as classifier.*; a new head is one; may be repeated',
    schema: z.array(text),
    default: [],
    isList: true,
  },
};
