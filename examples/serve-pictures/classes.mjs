// The class with the largest score of each sample, from an answer of the Open Inference Protocol on stdin.
import { readFileSync } from 'node:fs';

const { outputs, error } = JSON.parse(readFileSync(0, 'utf8'));
if (error !== undefined) throw new Error(error);
const [{ shape, data }] = outputs;
const [sampleCount, classCount] = shape;
const classes = Array.from({ length: sampleCount }, (_, sample) => {
  const scores = data.slice(sample * classCount, (sample + 1) * classCount);
  return scores.indexOf(Math.max(...scores));
});
console.log(classes.join(' '));
