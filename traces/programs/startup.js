// Starts up, loads a few modules, makes garbage enough for some collections, and ends.
const crypto = require('crypto');
const path = require('path');
const zlib = require('zlib');

const rows = [];
for (let round = 0; round < 40; round++) {
  const batch = Array.from({ length: 5000 }, (_, n) => ({ id: n, key: `key ${round} ${n}`, tags: [n % 7, n % 11] }));
  rows.push(...batch.filter((row) => row.id % 50 === 0));
}
const text = JSON.stringify(rows);
const packed = zlib.gzipSync(Buffer.from(text));
const digest = crypto.createHash('sha256').update(packed).digest('hex');
console.log(path.basename(__filename), rows.length, text.length, packed.length, digest.length);
