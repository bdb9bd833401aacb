// A command that may open no further file says which limit to raise, and not that a path is wrong.

import { expect, it } from 'vitest';
import { failureOf } from '../src/errors.js';
import { namingDisk } from '../src/files/disk-room.js';
import { describeFailure } from '../src/launch/rank-failure.js';

/** What Node throws where a file of the trainer itself is one too many. */
function tooMany() {
  const path = '/app/dist/chunk.js';
  const error = new Error(`EMFILE: too many open files, open '${path}'`);
  return Object.assign(error, { code: 'EMFILE', errno: -24, syscall: 'open', path });
}

const HINT = 'Raise the limit of open files (ulimit -n), or take fewer ranks in a process.';

it('the limit of open files is what a command asks to have raised', () => {
  expect(failureOf(tooMany())).toEqual({
    exitCode: 1,
    failure: `/app/dist/chunk.js can't be used (too many open files). ${HINT}`,
  });
});

it('the limit of open files is what a rank asks to have raised', () => {
  expect(describeFailure(tooMany())).toEqual({
    kind: 'failed',
    message: `EMFILE: too many open files, open '/app/dist/chunk.js'. ${HINT}`,
  });
});

it('a file that is written and that the system can make no larger is named', () => {
  const error = { code: 'EFBIG', errno: -27, syscall: 'write', message: 'EFBIG' };
  expect(failureOf(namingDisk(error, '/on/fat/model'))).toEqual({
    exitCode: 1,
    failure: `/on/fat/model can't be used (file too large). Raise the limit of the size of files (ulimit -f), or take a disk that holds larger ones.`,
  });
});
