// A run's trained model for transformers and PEFT: a checkout's folder with the names of its files, or an adapter's.

import { basename, resolve } from 'node:path';
import { defined } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { writeSafetensors } from '../../training/safetensors.ts';
import { mergedValues } from '../run/adapters.ts';
import { checkoutSpec, openCheckoutModel } from './checkouts.ts';
import { writeAdapter } from './peft.ts';
import type { TrainedRun } from './trained.ts';

/** Files by name, each as pieces in order. */
export type ExportedFiles = ReadonlyMap<string, readonly Uint8Array[]>;

/** Weights as safetensors, under the names of the checkout that the run began with; with its config.json. */
export function asSafetensors({ model, values, settings }: TrainedRun): ExportedFiles {
  const merged = mergedValues(model, values);
  const { graph } = model;
  const adapterNames = new Set((model.adapters ?? []).flatMap(({ a, b }) => [a, b]));
  const names = [...graph.parameters, ...graph.buffers].filter((name) => !adapterNames.has(name));
  const tensorOf = (name: string): Tensor => defined(merged.get(name) ?? graph.initializers.get(name), name);
  const spec = checkoutSpec(settings.model);
  if (spec === undefined) {
    const tensors = new Map(names.map((name) => [name, tensorOf(name)]));
    return new Map([['model.safetensors', writeSafetensors(tensors, format)]]);
  }
  const { config, fileNames, prefix, newNames, batchCounts, graph: own } = openCheckoutModel(spec, settings.seed);
  const isBare = newNames.length > 0 && ![...fileNames.values()].some((name) => name.startsWith(prefix));
  // a head needs the whole names: without the prefix transformers would not find what is beside it
  const nameOf = (name: string): string => (isBare ? name : (fileNames.get(name) ?? name));
  const tensors = new Map([...names.map((name) => [nameOf(name), tensorOf(name)] as const), ...batchCounts]);
  const outputs = own.outputs[0]?.shape.at(-1);
  const fields = { ...(config as object), ...headFields(config, typeof outputs === 'number' ? outputs : undefined) };
  return new Map([
    ['config.json', [new TextEncoder().encode(`${JSON.stringify(fields, null, 2)}\n`)]],
    ['model.safetensors', writeSafetensors(tensors, format)],
  ]);
}

const format: ReadonlyMap<string, string> = new Map([['format', 'pt']]);

const classifiers: Readonly<Record<string, string>> = {
  bert: 'BertForSequenceClassification',
  distilbert: 'DistilBertForSequenceClassification',
  roberta: 'RobertaForSequenceClassification',
  vit: 'ViTForImageClassification',
  deit: 'DeiTForImageClassification',
  resnet: 'ResNetForImageClassification',
  mobilenet_v2: 'MobileNetV2ForImageClassification',
  efficientnet: 'EfficientNetForImageClassification',
};

/** What config.json says of the head; all weights are float32. */
function headFields(config: unknown, outputs: number | undefined): Readonly<Record<string, unknown>> {
  const { model_type: type = '', architectures } = config as { model_type?: string; architectures?: unknown };
  const isDistilled = type === 'deit' && /WithTeacher/.test(JSON.stringify(architectures));
  const architecture = isDistilled ? `${classifiers[type]}WithTeacher` : classifiers[type];
  if (architecture === undefined || outputs === undefined) return { dtype: 'float32' };
  const labels = Array.from({ length: outputs }, (_, index) => `LABEL_${index}`);
  return {
    architectures: [architecture],
    dtype: 'float32',
    id2label: Object.fromEntries(labels.entries()),
    label2id: Object.fromEntries(labels.map((label, index) => [label, index])),
  };
}

/** The adapter of a run as PEFT has it. Throws InputError for a run without one. */
export function asAdapter({ model, values, settings }: TrainedRun, folder: string): ExportedFiles {
  const { adapters, onlyTrained, graph, moduleName } = model;
  if (adapters === undefined || onlyTrained === undefined)
    throw new InputError(`${folder} trained no adapter: --format onnx or safetensors writes its model.`);
  const ofAdapters = new Set(adapters.flatMap(({ a, b }) => [a, b]));
  const spec = checkoutSpec(settings.model);
  const task = spec === undefined ? undefined : openCheckoutModel(spec, settings.seed).task;
  return writeAdapter({
    adapters,
    whole: [...onlyTrained].filter((name) => !ofAdapters.has(name)),
    baseModel: spec === undefined ? basename(settings.model) : resolve(spec.folder),
    ...(task === 'language' ? { taskType: 'CAUSAL_LM' } : task === 'texts' ? { taskType: 'SEQ_CLS' } : {}),
    ...(moduleName === undefined ? {} : { moduleName }),
    tensorOf: (name) => defined(values.get(name) ?? graph.initializers.get(name), name),
  });
}

/** Files beside the weights that belong to a model of texts. */
export const tokenizerFiles: readonly string[] = ['tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json'];

/** Where a run's checkout has its files; undefined for other models. */
export function checkoutFolder({ settings }: TrainedRun): string | undefined {
  return checkoutSpec(settings.model)?.folder;
}
