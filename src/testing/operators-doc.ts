// docs/operators.md as text, from the tables that the code itself uses. generate-operators-doc.ts writes it; a test
// compares.

import { gradientRules } from '../autodiff/rules.ts';
import { composites } from '../graph/composites/expand.ts';
import { canonicalOpset } from '../graph/graph.ts';
import { operators } from '../graph/operators/index.ts';
import type { OperatorName } from '../graph/operators/names.ts';
import { elementTypes } from '../graph/tensor.ts';
import { excludedTests, nodeTestCounts, nodeTestVersion, notInOnnxRuntime } from './onnx-node-tests.ts';
import { gapsVersion, onnxRuntimeGaps } from './onnxruntime-gaps.ts';

/** The text of docs/operators.md. */
export function operatorsDocument(): string {
  const names = (Object.keys(operators) as OperatorName[]).sort();
  const differentiable = names.filter((name) => gradientRules[name] !== 'not-differentiable').length;
  return `# Operators

<!-- Generated: npm run build && node dist/testing/generate-operators-doc.js -->

Asteroid knows ${names.length} operators of ONNX's default domain, in their form at opset ${canonicalOpset} (older and
newer models are brought to that form when they are read). A gradient flows through ${differentiable} of them.
${Object.keys(composites).length} more are written out in these when a model's shapes are known (see below). A model
with any other operator is refused with that operator's name.

- **Gradient**: "yes" if a loss can be differentiated through the operator; "none" if its outputs are integers, booleans
  or piecewise constant, so that no gradient passes.
- **Known before running**: inputs (counted from 0) that decide about shapes. They must be initializers, or follow from
  constants and shapes.
- **Not in ONNX Runtime**: element types without a kernel in ONNX Runtime ${gapsVersion} on CPU; the reference engine
  runs them. float32 has all kernels.

Element types: ${elementTypes.join(', ')},
as far as ONNX allows them for the operator. Models in float16 or bfloat16 are read as float32. Dropout that drops, and
the operators that draw random numbers, are made reproducible before training: what they draw becomes an input that
follows from the seed, the round and the sample.

| Operator | Gradient | Known before running | Not in ONNX Runtime |
| --- | --- | --- | --- |
${names.map(row).join('\n')}

## Written out in others

Gradients flow through these as through what they are written out in.

| Operator | Known before running | Limits |
| --- | --- | --- |
${Object.keys(composites).sort().map(compositeRow).join('\n')}

An \`If\` whose condition follows from constants and shapes is replaced by the branch that is taken; \`Upsample\`,
\`Swish\` and \`Scatter\` are read as operators of the table. \`If\` on data, \`Loop\` and \`Scan\` are refused.

## ONNX's own tests

Of the ${nodeTestCounts.all} node tests of ONNX ${nodeTestVersion}, Asteroid claims ${nodeTestCounts.claimed}, and
passes all of these with its reference kernels. ONNX Runtime passes the same graphs, but for ${notInOnnxRuntime.length}
that it has no CPU kernel for: ${notInOnnxRuntime.join(', ')}.

Not claimed:

${Object.entries(nodeTestCounts.notClaimed)
  .map(([reason, count]) => `- ${count}: ${reason}`)
  .join('\n')}

Excluded by name:

${Object.entries(excludedTests)
  .map(([name, reason]) => `- ${name} (${reason})`)
  .join('\n')}
`;
}

/** What of an operator is not supported. */
const limits: Readonly<Record<string, string>> = {
  Attention: 'no nonpad_kv_seqlen, no qk_matmul_output',
  'com.microsoft.Attention': 'no mask index, no past',
  'com.microsoft.FusedMatMul': 'no transposed batch',
  'com.microsoft.MultiHeadAttention': 'no key padding mask, no past; query, key and value apart',
  GridSample: 'images; linear and nearest; padding with zeros or the border',
  GRU: 'unrolled, up to 2048 steps; sequences of one length',
  LSTM: 'unrolled, up to 2048 steps; sequences of one length',
  Resize: 'where its mode is cubic; the others are in the table above',
  ReverseSequence: 'batch and time on the first two axes',
  RNN: 'unrolled, up to 2048 steps; sequences of one length',
};

function compositeRow(name: string): string {
  return `| ${name} | ${(composites[name]?.constantInputs ?? []).join(', ')} | ${limits[name] ?? ''} |`;
}

function row(name: OperatorName): string {
  const gradient = gradientRules[name] === 'not-differentiable' ? 'none' : 'yes';
  const known = operators[name].constantInputs.join(', ');
  const gaps = (onnxRuntimeGaps[name] ?? []).join(', ');
  return `| ${name} | ${gradient} | ${known} | ${gaps} |`;
}
