-- Nothing to change here: a mark is several statements, and what they find is counted.
SELECT 1;
