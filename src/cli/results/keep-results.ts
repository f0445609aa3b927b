// What a finished run leaves for people: evaluation.json, the report, and the classes on the terminal.

import { InputError } from '../../errors.ts';
import type { PreparedRun } from '../../runtime/run/prepare.ts';
import type { SessionResult } from '../../runtime/run/session.ts';
import type { RunFolder } from '../../storage/run-folder.ts';
import type { Output } from '../output.ts';
import { readRunFacts } from './read-run.ts';
import { reportPage } from './report-page.ts';
import { type TestResults, testResults } from './test-results.ts';

/** Writes evaluation.json; undefined for a run without a test. Throws RunError. */
export async function keepResults(
  folder: RunFolder,
  { test, train, settings, companions = {} }: PreparedRun,
  { evaluation, modelRound }: Pick<SessionResult, 'evaluation' | 'modelRound'>,
): Promise<TestResults | undefined> {
  if (test === undefined || evaluation === undefined) return undefined;
  const results = await testResults({
    round: modelRound,
    evaluation,
    loss: settings.loss,
    test,
    tokenizer: companions['tokenizer.json'],
    classNames: train.classNames ?? test.classNames,
  });
  await folder.write('evaluation.json', `${JSON.stringify(results)}\n`);
  return results;
}

/** Writes the report of a run whose other documents are written; damaged ones are a warning. Throws RunError. */
export async function writeReport(folder: RunFolder, output: Pick<Output, 'observe'>): Promise<void> {
  try {
    await folder.write('report.html', reportPage(await readRunFacts(folder.path, folder.disk)));
  } catch (error) {
    if (!(error instanceof InputError)) throw error;
    output.observe({ kind: 'warning', message: `There is no report: ${error.message}` });
  }
}
