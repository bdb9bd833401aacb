// The titles of tests and of their describes, as a test file writes them: of a template its text,
// of `each` the title with its places.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { ROOT } from './workspace.ts';

export interface TestTitle {
  readonly call: 'it' | 'test' | 'describe';
  readonly title: string;
}

/** The titles in a test file, in its order. A title that a function makes is left out. */
export function titlesIn(path: string): readonly TestTitle[] {
  const source = readFileSync(join(ROOT, path), 'utf8');
  const titles: TestTitle[] = [];
  const visit = (node: ts.Node): void => {
    if (ts.isCallExpression(node) && node.arguments.length > 1) {
      const call = calledIn(node.expression);
      const title = textOf(node.arguments[0]!);
      if (call !== undefined && title !== undefined) {
        titles.push({ call, title });
      }
    }
    ts.forEachChild(node, visit);
  };
  visit(ts.createSourceFile(path, source, ts.ScriptTarget.Latest, true));
  return titles;
}

/** Finds the `it` of `it`, `it.skip`, `it.each(rows)` and `it.skipIf(reason)`. */
function calledIn(callee: ts.Expression): TestTitle['call'] | undefined {
  if (ts.isIdentifier(callee)) {
    const { text } = callee;
    return text === 'it' || text === 'test' || text === 'describe' ? text : undefined;
  }
  const isChained =
    ts.isCallExpression(callee) ||
    ts.isPropertyAccessExpression(callee) ||
    ts.isTaggedTemplateExpression(callee);
  if (!isChained) {
    return undefined;
  }
  return calledIn(ts.isTaggedTemplateExpression(callee) ? callee.tag : callee.expression);
}

function textOf(title: ts.Expression): string | undefined {
  if (ts.isStringLiteralLike(title)) {
    return title.text;
  }
  return ts.isTemplateExpression(title) ? title.getText().slice(1, -1) : undefined;
}
