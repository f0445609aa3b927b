// docs/models.md as text, from the zoo itself. generate-models-doc.ts writes it; a test compares.

import { layers } from '../graph/layers.ts';
import { elementCount, type Tensor } from '../graph/tensor.ts';
import { buildModel, zoo } from '../models/zoo.ts';

/** The text of docs/models.md. */
export function modelsDocument(): string {
  return `${head}${zoo.map(row).join('\n')}\n${tail}`;
}

function row({ name, summary, defaults }: (typeof zoo)[number]): string {
  const { graph } = buildModel(name, { initialize: false });
  const count = graph.parameters.reduce(
    (sum, parameter) => sum + elementCount((graph.initializers.get(parameter) as Tensor).shape),
    0,
  );
  const options = Object.entries(defaults).map(([option, value]) => `${option}=${value}`);
  const cells = [`\`${name}\``, summary, count.toLocaleString('en'), layers(graph).layers.length, options.join(' ')];
  return `| ${cells.join(' | ')} |`;
}

const head = `# Built-in models

<!-- Generated: npm run build && node dist/testing/generate-models-doc.js -->

\`--model\` takes the path of an ONNX file, or one of these names, with options after a colon:
\`--model mobilenet-v2:input=32,classes=10\`. Names are compared without case, hyphens, points and underscores, so that
torchvision's \`mobilenet_v2\` or \`resnet18\` are found, too. In code:
\`buildModel('resnet-18:classes=10', { seed: 1 })\` gives the graph and says what goes in and which labels it wants.

| Name | Model | Parameters | Layers | Options and their defaults |
| --- | --- | ---: | ---: | --- |
`;

const tail = `
| Option | Meaning |
| --- | --- |
| \`input\` | side of the square images, in pixels; a multiple of the patch for ViT and DeiT |
| \`channels\` | colours of the images |
| \`classes\` | outputs of the head |
| \`dropout\` | how often dropout zeroes an element in training; 0 leaves it out |
| \`sequence\` | tokens of a sequence, at most 512 |
| \`features\` | numbers of a row; those of the data, where the model is trained on a table |
| \`hidden\` | widths of hidden layers, such as \`256-128-64\` |
| \`activation\` | \`relu\` or \`tanh\` |

## What they are

- Convolutional models are torchvision's, BERT is transformers' \`BertForSequenceClassification\`, ViT and DeiT are its
  \`ViTForImageClassification\`: the same parameters by the same names (transformers 5), so that state dictionaries
  fit, and the same initial distributions, drawn by \`--seed\` and each name. Outputs, losses and gradients are tested
  against theirs with equal weights (\`test/fixtures/zoo\`).
- Stochastic depth, which torchvision's EfficientNet has in training, is left out; dropout is there.
- \`mobilenet-v2-cifar\` is MobileNetV2 with the first two of its five strides removed, for images of 32x32: 90 million
  multiply-adds where \`mobilenet-v2:input=32\` does 6 million. \`efficientnet-b1:input=32\` keeps all its strides, as
  in the Asteroid paper, whose volumes agree with the parameter counts of these two at ten classes.
- BERT takes full sequences of token numbers, int64: no attention mask, one token type. The row of token 0 (padding) is
  trained like others.
- \`conv-s\`, \`conv-l\`, \`fc-s\` and \`fc-l\` are AsyncFGD's Tables 8 to 11. Table 9 ends with 256 features, behind
  which Table 5 still has an activation; \`fc-s\` makes its logits with one more linear layer.
- **Layers** are what the planner cuts between: each begins with a convolution, matrix product, embedding or pool;
  normalization and activations belong to the layer before. The Asteroid paper speaks of 213 layers of EfficientNet-B1
  and 56 of BERT-small without saying what it counts; here they are 140 (115 convolutions, 24 pools, the classifier)
  and 35.
`;
