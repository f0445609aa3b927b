// Requests for inference, from whoever reaches the server: JSON, and JSON with the bytes of tensors behind it.

import assert from 'node:assert/strict';
import type { CutTensor } from '../../graph/layers.ts';
import { tensor } from '../../graph/tensor.ts';
import type { Random } from '../../random.ts';
import { encodeInferResponse, parseInferRequest, type ServedModel } from '../../runtime/run/open-inference.ts';
import { damagedBytes, damagedText, oneOf } from '../inputs.ts';
import type { Target } from '../target.ts';

const cut = (name: string, type: CutTensor['type'], shape: CutTensor['shape']): CutTensor => ({
  ...{ name, type, shape, batchAxis: 0, differentiable: false },
});
const model: ServedModel = {
  name: 'two',
  inputs: [cut('x', 'float32', ['N', 2]), cut('ids', 'int64', ['N'])],
  outputs: [cut('y', 'float32', ['N', 1])],
};

const x = { name: 'x', shape: [2, 2], datatype: 'FP32' };
const ids = { name: 'ids', shape: [2], datatype: 'INT64', data: [1, 2] };
const documents: readonly object[] = [
  { id: 'a', inputs: [{ ...x, data: [1, 2, 3, 4] }, ids] },
  {
    inputs: [ids, { ...x, data: [[1, 2], 3, [[4]]] }],
    outputs: [{ name: 'y', parameters: { binary_data: true } }],
  },
  { inputs: [{ ...x, parameters: { binary_data_size: 16 } }, ids], parameters: { binary_data_output: true } },
];

interface RequestInput {
  readonly body: Uint8Array;
  readonly headerLength: string | undefined;
}

/** A request with its JSON, its bytes or its length damaged. */
export function inferenceTarget(): Target<RequestInput> {
  return {
    input(random: Random) {
      const text = JSON.stringify(oneOf(documents, random));
      const json = new TextEncoder().encode(random.uniform() < 0.7 ? damagedText(text, random) : text);
      const whole = new Uint8Array(json.length + 16);
      whole.set(json);
      const body = random.uniform() < 0.3 ? damagedBytes([whole], random) : whole;
      const length = random.uniform() < 0.8 ? json.length : random.integer(2 * whole.length);
      return { body, headerLength: random.uniform() < 0.1 ? damagedText(String(length), random) : String(length) };
    },
    take(given) {
      const request = parseInferRequest(given, model, 8);
      const { sampleCount, inputs } = request;
      assert.deepEqual(
        inputs.map(({ shape }) => shape),
        [[sampleCount, 2], [sampleCount]],
      );
      const { body, headerLength = body.length } = encodeInferResponse(model, request, [
        tensor(
          'float32',
          [sampleCount, 1],
          Array.from({ length: sampleCount }, () => 0.5),
        ),
      ]);
      JSON.parse(new TextDecoder().decode(body.subarray(0, headerLength)));
    },
  };
}
