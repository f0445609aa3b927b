import { engineSuite } from '../testing/engine-suite.ts';
import { createReferenceEngine } from './reference.ts';

engineSuite('reference engine', async () => createReferenceEngine(), { isThreaded: false });
