// Writes docs/models.md. Run it after a change to the zoo: npm run build && node dist/testing/generate-models-doc.js

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { modelsDocument } from './models-doc.ts';
import { fixtureFolder } from './pytorch-fixtures.ts';

writeFileSync(join(fixtureFolder('zoo'), '..', '..', '..', 'docs', 'models.md'), modelsDocument());
