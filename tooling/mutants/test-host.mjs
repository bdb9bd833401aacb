// A vitest that stays, in a process of its own: what a run would start and transform again for each
// mutant is there already. Its parent sends one run at a time and reads the report from a file.
import { readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createVitest } from 'vitest/node';

const [root, report] = process.argv.slice(2);
const vitest = await createVitest('test', {
  root,
  watch: false,
  // A process for each file, since one that stays would hold the modules of the mutant before.
  isolate: true,
  reporters: ['json'],
  outputFile: report,
});
await vitest.standalone();

process.on('message', ({ file, pattern, bail, changed }) => {
  void runTests({ file, pattern, bail, changed });
});
process.on('disconnect', () => process.exit());
process.send('ready');

async function runTests({ file, pattern, bail, changed }) {
  for (const path of changed) {
    vitest.invalidateFile(path);
  }
  if (pattern === undefined) {
    vitest.resetGlobalTestNamePattern();
  } else {
    vitest.setGlobalTestNamePattern(pattern);
  }
  vitest.config.bail = bail;
  for (const project of vitest.projects) {
    project.config.bail = bail;
  }
  const before = new Set(readdirSync(tmpdir()));
  await vitest.runTestSpecifications(await vitest.globTestSpecifications([file]));
  for (const name of readdirSync(tmpdir())) {
    // What a run leaves for other files, such as the built command, has the mutant in it.
    if (!before.has(name)) {
      rmSync(join(tmpdir(), name), { recursive: true, force: true, maxRetries: 3 });
    }
  }
  process.exitCode = 0;
  process.send('done');
}
