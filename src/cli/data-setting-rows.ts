// The settings of what is trained on, as rows of the table in settings.ts.

import { z } from 'zod';
import { badFileChoices, type DataSettings, defaultDataSettings } from '../training/data/data-settings.ts';
import { augmentations } from '../training/data/pictures/augment.ts';
import { numeric, type Setting, text, toggle, whole, wholeOrZero } from './setting-values.ts';

const below1: z.ZodType = numeric(z.number().min(0, 'must be 0 to below 1').lt(1, 'must be 0 to below 1'));

/** The rows, by name. */
export const dataRows: Readonly<Record<keyof DataSettings | 'data' | 'evalData', Setting>> = {
  data: {
    argument: 'SPEC',
    description:
      'images:DIR | table:FILE | text:FILE | mnist | idx:DIR | npy:INPUTS,LABELS | npz:FILE | csv:FILE | ' +
      'cifar10:DIR | tokens:FILE | synthetic:SHAPE | synthetic-tokens:LENGTH:VOCABULARY',
    schema: text,
    isRequired: true,
  },
  evalData: {
    argument: 'SPEC',
    description: 'data to test on (default: the test part of --data, if it has one)',
    schema: text,
  },
  evalSplit: {
    argument: 'F',
    description: 'the fraction of samples to test on, of each class alike, where the data have no test part',
    schema: below1,
    default: defaultDataSettings.evalSplit,
  },
  imageSize: {
    argument: 'N',
    description: 'the side of pictures (default: what the model takes, else 224)',
    schema: numeric(
      z.number().int('must be a whole number').min(1, 'must be at least 1').max(4096, 'must be at most 4096'),
    ),
  },
  preprocessor: {
    argument: 'FILE',
    description: 'a preprocessor_config.json: size, mean and deviation of pictures (default: those of ImageNet)',
    schema: text,
  },
  augment: {
    argument: 'NAMES',
    description: `change pictures at random: ${augmentations.join(', ')}; several with commas`,
    schema: text,
  },
  mixup: {
    argument: 'A',
    description: 'blend samples and their labels, by weights of Beta(A, A), such as 0.2',
    schema: numeric(z.number().min(0, 'must not be negative').max(100, 'must be at most 100')),
    default: defaultDataSettings.mixup,
  },
  labelSmoothing: {
    argument: 'F',
    description: 'the fraction of each label that is spread over all classes, such as 0.1',
    schema: below1,
    default: defaultDataSettings.labelSmoothing,
  },
  classWeights: {
    argument: 'LIST',
    description: 'what samples of each class count: numbers with commas, or balanced: rare classes count more',
    schema: text,
  },
  onBadFile: {
    argument: 'refuse|skip',
    description: 'what to do about a file that cannot be read',
    schema: z.enum(badFileChoices),
    default: defaultDataSettings.onBadFile,
  },
  label: {
    argument: 'COLUMN',
    description: 'the column of labels in a table (default: label, else the last); several with commas',
    schema: text,
  },
  columns: { argument: 'NAMES', description: 'the columns to learn from, with commas (default: all)', schema: text },
  standardize: {
    description: 'take the numbers of a table as they are (default: less their mean, over their deviation)',
    schema: toggle,
    default: defaultDataSettings.standardize,
    isNegated: true,
  },
  tokenizer: {
    argument: 'FILE',
    description: 'the tokenizer.json of a model for texts, or its folder',
    schema: text,
  },
  maxLength: {
    argument: 'N',
    description: 'tokens of a text, or of a block of texts, where the model leaves that open (default: 256 at most)',
    schema: whole,
  },
  groupByLength: {
    description: 'make batches of texts of like length, padded to that: short texts cost less',
    schema: toggle,
    default: defaultDataSettings.groupByLength,
  },
  dataThreads: {
    argument: 'N',
    description: 'threads that decode pictures (default: the cores but one, 1 to 4)',
    schema: whole,
  },
  dataCache: {
    argument: 'MIB',
    description: 'memory for pictures that are decoded once',
    schema: wholeOrZero,
    default: defaultDataSettings.dataCache,
  },
};
