// The first ten pictures of an idx file on stdin, as a request of the Open Inference Protocol.
import { readFileSync } from 'node:fs';

const count = 10;
const pixels = readFileSync(0).subarray(16, 16 + count * 784);
const data = Array.from(pixels, (value) => value / 255);
console.log(JSON.stringify({ inputs: [{ name: 'image', shape: [count, 1, 28, 28], datatype: 'FP32', data }] }));
