// The papers' models as layer tables, with the batch of a round and our assumptions where a paper is silent.

import type { ModelTable, TableLayer } from '../../cluster/device-kinds.ts';
import { modelTable } from '../../runtime/host/models.ts';

export interface PaperModel {
  /** The paper's name for it. */
  readonly name: string;
  readonly table: ModelTable;
  /** Samples of a round (Asteroid §5.2). */
  readonly batchSize: number;
  /** The largest micro-batch of a device that the paper profiled (§5.7). */
  readonly profiledBatch: number;
}

/** Our assumptions about the models. */
export const modelNotes = `EfficientNet-B1 and MobileNetV2 at 32x32 would take a tenth of Table 1's times with all \
their strides: they are taken without the first one and
without the first two, as their usual CIFAR variants (49 and 89 million multiply-adds). ResNet-50 has a head of 100 \
classes. BERT-small (4 layers of 512) gets its
input of 32 x 512 as 32 tokens that are embedded already: the 56 layers of §5.7 are 14 for each of 4 blocks and leave \
none for an embedding. Layers are cut at each
convolution and matrix product (140, 54, 56 and 34 layers). Weights and activations are 32-bit floats.`;

/** The models of Asteroid §5.1. */
export async function asteroidModels(): Promise<readonly PaperModel[]> {
  const efficientNet = await modelTable('efficientnet-b1:input=64,classes=10');
  const bert = await modelTable('bert-small:sequence=32');
  return [
    // 64x64 with the first stride has the planes of 32x32 without it.
    {
      name: 'EfficientNet-B1',
      table: { ...efficientNet, inputBytes: 3 * 32 * 32 * 4 },
      batchSize: 2048,
      profiledBatch: 256,
    },
    { name: 'MobileNetV2', table: await modelTable('mobilenet-v2-cifar'), batchSize: 2048, profiledBatch: 256 },
    { name: 'ResNet-50', table: await modelTable('resnet-50:classes=100'), batchSize: 256, profiledBatch: 32 },
    {
      name: 'BERT-small',
      table: { ...bert, inputBytes: 32 * 512 * 4, layers: bert.layers.slice(1) },
      batchSize: 2048,
      profiledBatch: 256,
    },
  ];
}

/** PipeEdge's models: transformers in its four parts a block (its Fig. 3), without the values saved for training. */
export async function pipeEdgeModels(): Promise<readonly { readonly name: string; readonly table: ModelTable }[]> {
  return [
    { name: 'ViT-Large', table: inFourParts(await modelTable('vit-large')) },
    { name: 'ViT-Huge', table: inFourParts(await modelTable('vit-huge')) },
    { name: 'BERT-Large', table: inFourParts(await modelTable('bert-large:sequence=512')) },
  ];
}

/** The model of PipeEdge's Table II: 48 layers. */
export async function vitBase(): Promise<ModelTable> {
  return inFourParts(await modelTable('vit-base'));
}

/** The models of PipeEdge's Fig. 9. */
export async function deitModels(): Promise<readonly { readonly name: string; readonly table: ModelTable }[]> {
  const base = await vitBase();
  return [
    { name: 'ViT-Base', table: base },
    { name: 'DeiT-Base', table: base },
    { name: 'DeiT-Small', table: inFourParts(await modelTable('deit-small')) },
    { name: 'DeiT-Tiny', table: inFourParts(await modelTable('deit-tiny')) },
  ];
}

/**
 * Our layers of a block are query, key, value, two products, output, and two dense ones; the paper's first part is the
 * first five.
 */
function inFourParts(table: ModelTable): ModelTable {
  const parts: TableLayer[] = [];
  let open: TableLayer[] = [];
  for (const layer of table.layers) {
    open.push(layer);
    if (
      !/attention\.(o_proj|output\.dense)$|mlp\.fc[12]$|layer\.\d+\.(intermediate|output)\.dense$/.test(layer.name) &&
      !isLastProduct(table, layer)
    )
      continue;
    parts.push(merged(open));
    open = [];
  }
  const last = parts.pop();
  return { ...table, layers: [...parts, merged([...(last === undefined ? [] : [last]), ...open])] };
}

/** Whether the layer is the attention's second product, which the output follows. */
function isLastProduct({ layers }: ModelTable, layer: TableLayer): boolean {
  return /attention\.(o_proj|output\.dense)$/.test(layers[layers.indexOf(layer) + 1]?.name ?? '');
}

/** Merges layers into one. */
export function merged(layers: readonly TableLayer[]): TableLayer {
  const sum = (key: 'weightBytes' | 'trafficBytes' | 'flops'): number =>
    layers.reduce((total, layer) => total + layer[key], 0);
  const last = layers.at(-1) as TableLayer;
  return {
    name: last.name,
    outputBytes: last.outputBytes,
    weightBytes: sum('weightBytes'),
    savedBytes: 0,
    flops: sum('flops'),
    trafficBytes: sum('trafficBytes'),
  };
}

/** The table cut more finely: its longest layers are halved until there are `count`. */
export function refined(table: ModelTable, count: number): ModelTable {
  const longest = [...table.layers]
    .sort((a, b) => b.flops - a.flops)
    .slice(0, Math.max(0, count - table.layers.length));
  const halved = new Set(longest);
  const layers = table.layers.flatMap((layer) => {
    if (!halved.has(layer)) return [layer];
    const half = {
      ...layer,
      weightBytes: layer.weightBytes / 2,
      savedBytes: layer.savedBytes / 2,
      flops: layer.flops / 2,
      trafficBytes: layer.trafficBytes / 2,
    };
    return [
      { ...half, name: `${layer.name}.a` },
      { ...half, name: `${layer.name}.b` },
    ];
  });
  return { ...table, layers };
}

/** Gigaflops of a forward pass of one sample. */
export function gigaflop(table: ModelTable): number {
  return table.layers.reduce((sum, layer) => sum + layer.flops, 0) / 1e9;
}
