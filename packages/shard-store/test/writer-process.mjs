// A process that trains without an end: `node writer-process.mjs ENTRY DIRECTORY`. It prints the
// number of each step that it has committed, and is killed by the test that started it.

import { pathToFileURL } from 'node:url';

const [entry, directory] = process.argv.slice(2);
const { openDiskStore } = await import(pathToFileURL(entry).href);
const KEYS = ['parameter', 'exp_avg', 'exp_avg_sq'];

const store = await openDiskStore({ directory });
console.log('open');
for (let step = store.generation + 1; ; step++) {
  await Promise.all(
    KEYS.map((key) => store.write(key, new Uint8Array(2 ** 21 + 5).fill(step % 256))),
  );
  await store.commit();
  console.log(step);
}
