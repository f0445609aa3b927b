// Writes docs/operators.md. Run it after a change to the operators: npm run build && node
// dist/testing/generate-operators-doc.js

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { operatorsDocument } from './operators-doc.ts';
import { fixtureFolder } from './pytorch-fixtures.ts';

writeFileSync(join(fixtureFolder('pytorch'), '..', '..', '..', 'docs', 'operators.md'), operatorsDocument());
