// The entry of every root script. It is written in the JavaScript of 2009, so that a Node too old
// for the rest of the tree answers with a sentence instead of a syntax error.
'use strict';

var OLDEST = [20, 19]; // engines.node of every package: the oldest the packages are tested on

var name = process.versions.node;
var sentence = 'shardweave needs Node ' + OLDEST.join('.') + ' or newer, and this is Node ' + name;
var found = name.split('.').map(Number);
if (found[0] < OLDEST[0] || (found[0] === OLDEST[0] && found[1] < OLDEST[1])) {
  console.error(sentence + '. Install a current Node, then run the same command again.');
  process.exit(1);
}
require('./start.cjs');
