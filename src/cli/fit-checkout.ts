// A checkout made to fit the data: tokens of a sample, outputs of the head; and the files beside a model that say how
// its samples are made. What the user wrote stays as it is.

import { isFloat } from '../graph/tensor.ts';
import type { CheckoutTask } from '../models/checkout/family.ts';
import type { CheckoutSpec } from '../runtime/host/checkouts.ts';
import { fileBeside, withCheckoutOptions } from '../runtime/host/checkouts.ts';
import type { TrainSettings } from '../runtime/run/settings.ts';
import type { Dataset } from '../training/data/dataset.ts';

/** Tokens of a sample at most, where the user does not say; a longest text with fewer makes samples shorter. */
const usualLength = 256;

/** The settings with tokenizer and preprocessor from beside the model, where the data need them. */
export function withFilesBeside(settings: TrainSettings, positions?: number): TrainSettings {
  const { model, data } = settings;
  const kind = data.slice(0, data.indexOf(':'));
  const tokenizer = kind === 'text' ? (settings.tokenizer ?? fileBeside(model, 'tokenizer.json')) : undefined;
  const preprocessor =
    kind === 'images' ? (settings.preprocessor ?? fileBeside(model, 'preprocessor_config.json')) : undefined;
  const maxLength =
    kind === 'text' && positions !== undefined ? (settings.maxLength ?? Math.min(usualLength, positions)) : undefined;
  return {
    ...settings,
    ...(tokenizer === undefined ? {} : { tokenizer }),
    ...(preprocessor === undefined ? {} : { preprocessor }),
    ...(maxLength === undefined ? {} : { maxLength }),
  };
}

/** The spec with the data's number of tokens and of classes. */
export function checkoutForData(spec: CheckoutSpec, task: CheckoutTask, { inputs, labels, ...data }: Dataset): string {
  const sequence = task === 'pictures' ? undefined : inputs[0]?.values.shape[1];
  const classes =
    task === 'language' ? undefined : outputsFor(labels.values, data.classNames?.length ?? data.classCount);
  return withCheckoutOptions(spec, {
    ...(sequence === undefined ? {} : { sequence }),
    ...(classes === undefined ? {} : { classes }),
  });
}

/** An output for each class, or for each number that is to be predicted. */
function outputsFor({ type, shape }: Dataset['labels']['values'], classCount: number | undefined): number | undefined {
  return isFloat(type) ? (shape[1] ?? 1) : classCount;
}
