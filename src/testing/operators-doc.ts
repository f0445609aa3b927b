// docs/operators.md as text, from the tables that the code itself uses. generate-operators-doc.ts writes it; a test compares.

import { gradientRules } from '../autodiff/rules.ts';
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

Asteroid knows ${names.length} operators of ONNX's default domain, in their form at opset ${canonicalOpset} (older and newer models are brought to that form
when they are read). A gradient flows through ${differentiable} of them. A model with any other operator is refused with that operator's name.

- **Gradient**: "yes" where a loss can be differentiated through the operator; "none" where its outputs are integers, booleans or
  piecewise constant, so that no gradient passes.
- **Known before running**: inputs (counted from 0) that decide about shapes. They must be initializers, or follow from constants and shapes.
- **Not in ONNX Runtime**: element types without a kernel in ONNX Runtime ${gapsVersion} on CPU; the reference engine runs them. float32 has all kernels.

Element types: ${elementTypes.join(', ')}, as far as ONNX allows them for the operator. Models in float16 or bfloat16 are read as float32.
Dropout that drops is made reproducible before training: its mask becomes an input.

| Operator | Gradient | Known before running | Not in ONNX Runtime |
| --- | --- | --- | --- |
${names.map(row).join('\n')}

## ONNX's own tests

Of the ${nodeTestCounts.all} node tests of ONNX ${nodeTestVersion}, Asteroid claims ${nodeTestCounts.claimed}, and passes all of these with its reference kernels. ONNX Runtime passes the same graphs, but for
${notInOnnxRuntime.length} that it has no CPU kernel for: ${notInOnnxRuntime.join(', ')}.

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

function row(name: OperatorName): string {
  const gradient = gradientRules[name] === 'not-differentiable' ? 'none' : 'yes';
  const known = operators[name].constantInputs.join(', ');
  const gaps = (onnxRuntimeGaps[name] ?? []).join(', ');
  return `| ${name} | ${gradient} | ${known} | ${gaps} |`;
}
