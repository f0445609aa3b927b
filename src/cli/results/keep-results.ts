// What a finished run leaves for people: evaluation.json, the report, and the classes on the terminal.

import type { PreparedRun } from '../../runtime/run/prepare.ts';
import type { SessionResult } from '../../runtime/run/session.ts';
import type { RunFolder } from '../../storage/run-folder.ts';
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

/** Writes the report of a run whose other documents are written. Throws RunError, or InputError for damaged ones. */
export async function writeReport(folder: RunFolder): Promise<void> {
  await folder.write('report.html', reportPage(await readRunFacts(folder.path, folder.disk)));
}
