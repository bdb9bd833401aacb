// `npm run one-hash`: the programs in all engines of this machine. It prints their hashes and ends
// with 1 where a numeric class has two for one program.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { ROOT } from '../setup/root.mjs';
import { anyBrowser, findEngines } from './engines.mjs';
import { HashTable } from './hash-table.mjs';

const HASHES = join(ROOT, 'tooling/one-hash/hashes.json');
const USAGE = `npm run one-hash [-- --only TEXT] [-- --open] [-- --update]
  --only TEXT  the engines whose names contain TEXT, such as Node
  --open       tells an address of this machine, for a browser that you open there
  --update     writes the hashes that were found to tooling/one-hash/hashes.json`;

const { values: flags } = parseArgs({
  options: {
    only: { type: 'string', default: '' },
    open: { type: 'boolean', default: false },
    update: { type: 'boolean', default: false },
    help: { type: 'boolean', short: 'h', default: false },
  },
});

if (flags.help) {
  console.log(USAGE);
} else {
  await main();
}

async function main() {
  const table = new HashTable(flags.update ? {} : JSON.parse(readFileSync(HASHES, 'utf8')));
  const engines = flags.open
    ? [anyBrowser((url) => console.log(`Open ${url} in the browser.`))]
    : findEngines().filter(({ name }) => name.includes(flags.only));
  for (const engine of engines) {
    const { threads, name } = engine;
    try {
      const outcomes = await engine.run({ threads, fused: [true, false] });
      console.log(table.add(name, outcomes).join('\n'));
    } catch (error) {
      table.faults.push(`${name}: ${error.message}`);
      console.log(`${name}: failed`);
    }
  }
  console.log(Object.keys(table.hashes).join('\n'));
  console.log(table.programs.map((program, i) => `program ${i + 1}: ${program}`).join('\n'));
  if (flags.update) {
    writeFileSync(HASHES, `${JSON.stringify(table.hashes, null, 2)}\n`);
  }
  const { faults } = table;
  console.log(
    faults.length === 0
      ? `One hash for each numeric class and program, in ${engines.length} engines.`
      : faults.join('\n'),
  );
  process.exitCode = faults.length === 0 ? 0 : 1;
}
