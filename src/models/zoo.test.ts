// The zoo's tables: names, published parameter counts, layers; options and their errors. Outputs are compared in
// pytorch.test.ts. No weights are drawn here.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { InputError } from '../errors.ts';
import { layers } from '../graph/layers.ts';
import { elementCount, type Tensor, toNumbers } from '../graph/tensor.ts';
import { buildModel, isZooSpec, zoo } from './zoo.ts';

/**
 * torchvision's `num_params`; DeiT's and ViT's as counted by timm and transformers; BERT's encoders with their pooler
 * (28,763,648 …) and a head of two classes.
 */
const published: readonly (readonly [spec: string, parameterCount: number, layerCount: number])[] = [
  ['digits', 237_514, 6],
  ['fashion', 421_642, 6],
  ['mobilenet-v2', 3_504_872, 54],
  ['mobilenet-v2-cifar', 2_236_682, 54],
  ['mobilenet-v3-small', 2_542_856, 64],
  ['mnasnet-0.5', 2_218_512, 54],
  ['shufflenet-v2-x0.5', 1_366_792, 59],
  ['efficientnet-b0', 5_288_548, 99],
  ['efficientnet-b1', 7_794_184, 140],
  ['resnet-18', 11_689_512, 23],
  ['resnet-50', 25_557_032, 56],
  ['bert-small', 28_763_648 + 1_026, 35],
  ['bert-base', 109_482_240 + 1_538, 99],
  ['bert-large', 335_141_888 + 2_050, 195],
  ['vit-base', 86_567_656, 98],
  ['vit-large', 304_326_632, 194],
  ['vit-huge', 632_045_800, 258],
  ['deit-tiny', 5_717_416, 98],
  ['deit-small', 22_050_664, 98],
  ['deit-base', 86_567_656, 98],
  ['mlp', 2_176 + 8_256 + 130, 3],
  // Sums of the tables' shapes, for 28x28 grey images and ten classes.
  ['conv-s', 832 + 6_273_000 + 10_010, 4],
  ['conv-l', 1_568_000 + 1_984 + 20_490, 11],
  ['fc-s', 803_840 + 524_800 + 131_328 + 2_570, 4],
  ['fc-l', 803_840 + 3 * 1_049_600 + 524_800 + 2 * (4 * 1024 + 512) + 5_130, 6],
];

test('every model has its published parameter count, and its layers', () => {
  const found = published.map(([spec]) => {
    const { graph } = buildModel(spec, { initialize: false });
    const count = graph.parameters.reduce(
      (sum, name) => sum + elementCount((graph.initializers.get(name) as Tensor).shape),
      0,
    );
    return [spec, count, layers(graph).layers.length];
  });
  assert.deepEqual(found, published);
  assert.deepEqual(
    zoo.map(({ name }) => name),
    published.map(([spec]) => spec),
  );
});

describe('multiply-adds', () => {
  /**
   * Millions of multiply-adds for one sample; published ones count convolutions and linear layers only, ours are a few
   * percent more.
   */
  const millions = (spec: string): number => {
    const { graph } = buildModel(spec, { initialize: false });
    return Math.round(layers(graph).layers.reduce((sum, { flops }) => sum + flops / 2e6, 0));
  };

  test('of 224x224 images', () => {
    // published: 301, 4089, 386
    assert.deepEqual(['mobilenet-v2', 'resnet-50', 'efficientnet-b0'].map(millions), [307, 4103, 398]);
  });

  test('of 32x32 images: MobileNetV2 does a thirteenth of the work of its variant without early strides', () => {
    assert.deepEqual(['mobilenet-v2:input=32,classes=10', 'mobilenet-v2-cifar'].map(millions), [6, 90]);
  });
});

describe('options', () => {
  test('change the input and the head', () => {
    const { name, graph, input, label } = buildModel('mobilenet-v2:input=32,classes=10', { initialize: false });
    assert.equal(name, 'mobilenet-v2');
    assert.deepEqual(input, { name: 'input', type: 'float32', shape: [3, 32, 32] });
    assert.deepEqual(label, { type: 'int64', shape: [], classCount: 10 });
    assert.deepEqual(graph.inputs, [{ name: 'input', type: 'float32', shape: ['N', 3, 32, 32] }]);
    assert.deepEqual(graph.outputs[0]?.shape, ['N', 10]);
  });

  test('of the call override those of the spec', () => {
    const { input } = buildModel('resnet-18:input=32,channels=1', { input: 64, initialize: false });
    assert.deepEqual(input.shape, [1, 64, 64]);
  });

  test('of BERT: tokens', () => {
    const { input, label } = buildModel('bert-small:sequence=16,classes=4', { initialize: false });
    assert.deepEqual(input, { name: 'input_ids', type: 'int64', shape: [16], valueCount: 30522 });
    assert.equal(label.classCount, 4);
  });

  test('switch dropout off', () => {
    const dropouts = (spec: string): number =>
      buildModel(spec, { initialize: false }).graph.nodes.filter(({ operator }) => operator === 'Dropout').length;
    assert.deepEqual(
      ['bert-small', 'bert-small:dropout=0', 'mobilenet-v2', 'mobilenet-v2:dropout=0'].map(dropouts),
      [14, 0, 1, 0],
    );
  });

  test('choose the activation', () => {
    const { graph } = buildModel('fc-s:activation=tanh', { initialize: false });
    assert.deepEqual(
      graph.nodes.map(({ operator }) => operator),
      ['Flatten', 'Gemm', 'Tanh', 'Gemm', 'Tanh', 'Gemm', 'Tanh', 'Gemm'],
    );
  });
});

describe('weights', () => {
  test('follow from the seed', () => {
    const weight = (seed: number): number[] =>
      toNumbers(buildModel('digits', { seed }).graph.initializers.get('conv1.weight') as Tensor);
    assert.deepEqual(weight(1), weight(1));
    assert.notDeepEqual(weight(1), weight(2));
  });

  test('are distributed as in torchvision', () => {
    const { graph } = buildModel('mobilenet-v3-small:classes=10', { seed: 3 });
    const deviation = (name: string): number => {
      const values = toNumbers(graph.initializers.get(name) as Tensor);
      return Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length);
    };
    const close = (found: number, expected: number): void =>
      assert.ok(Math.abs(found - expected) < 0.05 * expected, `${found}`);
    close(deviation('features.12.0.weight'), Math.sqrt(2 / 576)); // He et al. by fan-out
    // depthwise: fan-out counts all groups, as in PyTorch
    close(deviation('features.4.block.1.0.weight'), Math.sqrt(2 / (96 * 25)));
    close(deviation('classifier.3.weight'), 0.01);
    assert.equal(deviation('classifier.3.bias'), 0);
    assert.equal(deviation('features.12.1.weight'), 1);
  });
});

describe('names', () => {
  test('are compared without case, hyphens, points and underscores: as torchvision writes them', () => {
    for (const spec of ['resnet18', 'mobilenet_v2', 'shufflenet_v2_x0_5', 'MNASNet0_5:input=32', 'efficientnet_b1']) {
      assert.ok(isZooSpec(spec), spec);
    }
    assert.equal(isZooSpec('resnet-18.onnx'), false);
    assert.equal(isZooSpec('models/resnet-18'), false);
  });
});

describe('errors', () => {
  const messages: Readonly<Record<string, string>> = {
    'resnet-34':
      `There is no built-in model "resnet-34" (there are: ${zoo.map(({ name }) => name).join(', ')}); ` +
      'give the path of an .onnx file.',
    'resnet-18:size=32':
      'The built-in model resnet-18 has no option "size=32"; it takes input=…, channels=…, classes=….',
    'resnet-18:input': 'The built-in model resnet-18 has no option "input"; it takes input=…, channels=…, classes=….',
    'resnet-18:input=32,': 'The built-in model resnet-18 has no option ""; it takes input=…, channels=…, classes=….',
    'digits:classes=10': 'The built-in model digits has no option "classes=10"; it takes no options.',
    'resnet-18:input=0':
      'The option input of the built-in model resnet-18 is "0"; it must be a whole number from 1 to 4096.',
    'resnet-18:classes=1e3':
      'The option classes of the built-in model resnet-18 is "1e3"; it must be a whole number from 1 to 1000000.',
    'resnet-18:input=32,input=64': 'The option input of the built-in model resnet-18 is given twice; give it once.',
    'mobilenet-v2:dropout=1':
      'The option dropout of the built-in model mobilenet-v2 is "1"; it must be a number from 0 to below 1.',
    'bert-small:sequence=513':
      'The option sequence of the built-in model bert-small is "513"; it must be a whole number from 1 to 512.',
    'conv-s:activation=gelu': 'The option activation of the built-in model conv-s is "gelu"; it must be relu or tanh.',
    'vit-base:input=100':
      'The option input of the built-in model vit-base is 100; it must be a multiple of 16, the side of a patch.',
  };
  for (const [spec, message] of Object.entries(messages)) {
    test(spec, () => {
      assert.throws(() => buildModel(spec), new InputError(message));
    });
  }
});
