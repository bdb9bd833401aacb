// What the classes of a source file look like: how many members each has, and what is spread into
// the objects that constructors take.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { ROOT } from './workspace.ts';

export interface ClassShapes {
  /** The classes, each with one member for each name, the private ones too. */
  readonly classes: readonly { readonly name: string; readonly numMembers: number }[];
  /** The spreads, such as `new Unit({ ...context })`. */
  readonly spreads: readonly string[];
}

export function classShapesIn(path: string): ClassShapes {
  const file = ts.createSourceFile(
    path,
    readFileSync(join(ROOT, path), 'utf8'),
    ts.ScriptTarget.Latest,
  );
  const classes: { name: string; numMembers: number }[] = [];
  const spreads: string[] = [];
  const visit = (node: ts.Node): void => {
    if (ts.isClassLike(node)) {
      const names = node.members.flatMap((member) => member.name?.getText(file) ?? []);
      const name = node.name?.text ?? 'a class without a name';
      classes.push({ name, numMembers: new Set(names).size });
    } else if (ts.isNewExpression(node)) {
      const made = node.expression.getText(file);
      const objects = node.arguments?.filter(ts.isObjectLiteralExpression) ?? [];
      for (const { properties } of objects) {
        for (const spread of properties.filter(ts.isSpreadAssignment)) {
          spreads.push(`new ${made}({ ${spread.getText(file).replaceAll(/\s+/g, ' ')} })`);
        }
      }
    }
    ts.forEachChild(node, visit);
  };
  visit(file);
  return { classes, spreads };
}
