import { test } from 'node:test';
import { engineSuite } from '../testing/engine-suite.ts';
import { softwareGpuMissing, useSoftwareGpu } from '../testing/software-gpu.ts';
import { createOnnxRuntimeNodeEngine } from './node/onnxruntime-node.ts';

useSoftwareGpu();
const create = () => createOnnxRuntimeNodeEngine({ device: 'gpu' });
if (softwareGpuMissing === undefined) engineSuite('webgpu of onnxruntime-node', create, { isThreaded: false });
else test('webgpu of onnxruntime-node', { skip: softwareGpuMissing }, () => {});
