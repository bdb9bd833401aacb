// Runs the mutants. Each one is alone in a copy of the tree, with the test that should fail because
// of it.
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { STATE } from '../setup/root.mjs';
import { MutantTree } from './mutant-tree.mjs';
import { faultsOf, readMutants } from './read-lists.mjs';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    help: { type: 'boolean', short: 'h', default: false },
    jobs: { type: 'string', default: String(Math.min(4, availableParallelism())) },
  },
});
if (values.help) {
  console.log(
    'npm run mutants -- [--jobs N] [LIST or LIST/ID, or how these begin ...]: by default all',
  );
  process.exit(0);
}

const isWanted = ({ list, id }) =>
  positionals.length === 0 ||
  positionals.some((one) => one === list || `${list}/${id}`.startsWith(one));
const mutants = readMutants().filter(isWanted);
const broken = mutants.flatMap((mutant) => faultsOf(mutant).map((fault) => [mutant, fault]));
for (const [mutant, fault] of broken) {
  console.error(`${mutant.list}/${mutant.id}: ${fault}`);
}
if (mutants.length === 0) {
  console.error('no mutant has such a name');
}
if (broken.length > 0 || mutants.length === 0) {
  process.exit(2);
}

// Those of one test file are judged together, for it runs once without any of them.
const left = groupByTest(mutants);
const numJobs = Math.max(1, Math.min(Number(values.jobs) || 1, left.length));
const count = { killed: 0, survived: 0, broken: 0 };

await Promise.all(Array.from({ length: numJobs }, (_, index) => work(index)));
console.log(`${count.killed} killed, ${count.survived} survived, ${count.broken} broken`);
process.exitCode = count.survived + count.broken === 0 ? 0 : 1;

function groupByTest(mutants) {
  const groups = new Map();
  for (const mutant of mutants) {
    const group = groups.get(mutant.test) ?? [];
    groups.set(mutant.test, [...group, mutant]);
  }
  return [...groups.values()];
}

/** Works in one copy of the tree until no mutant is left. */
async function work(index) {
  const tree = new MutantTree(join(STATE, 'mutants', String(index)));
  for (let group = left.shift(); group; group = left.shift()) {
    let started = performance.now();
    for await (const { mutant, outcome, detail } of tree.judge(group)) {
      count[outcome] += 1;
      const seconds = ((performance.now() - started) / 1000).toFixed(1);
      console.log(`${outcome.padEnd(8)} ${mutant.list}/${mutant.id} (${seconds} s) ${detail}`);
      started = performance.now();
    }
  }
  await tree.close();
}
